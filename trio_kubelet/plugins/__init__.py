"""Plugins of the node: processes that offer volumes or devices, and how they make themselves known.

A plugin puts a socket into the folder `plugins_registry`. `sockets.py` finds it, `registry.py`
asks who is there, hands the plugin to the handler of its type and tells the plugin what came of it.
"""

from trio_kubelet.plugins.registry import (
    MAX_ANSWER_BYTES,
    Plugin,
    PluginHandler,
    PluginRefused,
    PluginRegistry,
)

__all__ = ["MAX_ANSWER_BYTES", "Plugin", "PluginHandler", "PluginRefused", "PluginRegistry"]
