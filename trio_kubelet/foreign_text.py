r"""Text that others wrote: whether it can be sent on as it is, and be part of a path.

A Python string can hold what no UTF-8 can: lone surrogates, from JSON (`"\ud800"`) or as stand-ins
for bytes that are no UTF-8. Encoding them raises, in whatever part happens to be the first to
encode. So what decodes text of others refuses them, and what sends text spells them out.
"""

import re

MASKED = "<masked>"
_USER_OF_URL = re.compile(r"(?<=://)[^/?#\s]*@")
_PATH_PART = re.compile(r"[A-Za-z0-9_][-._A-Za-z0-9]{0,252}")
_BOOLEANS = {
    **dict.fromkeys(("1", "t", "T", "TRUE", "true", "True"), True),
    **dict.fromkeys(("0", "f", "F", "FALSE", "false", "False"), False),
}
LONE_SURROGATE = "must be valid Unicode, without lone surrogates"
PATH_PART = (
    "must consist of letters, digits, '-', '_' and '.', start with a letter, a digit or '_', and "
    "have at most 253 characters"
)


def is_unicode(text: str) -> bool:
    """True if the text has no lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def spelled_out(text: str) -> str:
    r"""Return the text with lone surrogates written as `\ud800`."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def boolean(text: str) -> bool | None:
    """Return what Go reads the text as (`strconv.ParseBool`); None if as neither."""
    return _BOOLEANS.get(text)


def is_path_part(text: str) -> bool:
    """True if the text names one file or folder, as names and UIDs of objects in the API do."""
    return _PATH_PART.fullmatch(text) is not None


def without_passwords(text: str) -> str:
    """Return the text with users and passwords of the URLs in it masked."""
    return _USER_OF_URL.sub(f"{MASKED}@", text) if "://" in text else text


def printable(text: str) -> str:
    """Return the text without what a terminal would act on, such as the end of a line."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text)
