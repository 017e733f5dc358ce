"""What simulated pods share: config maps, secrets, their service account, and a pull secret."""

import json
import random
from collections.abc import Mapping

from attrs import evolve

from tests.apiserver.server import ApiServer
from tests.simulation.shapes import ACCOUNT, LOGIN, NAMESPACE, PASSWORDS, PRIVATE, SETTINGS
from trio_kubelet.k8s import (
    CONFIG_MAPS,
    SECRETS,
    SERVICE_ACCOUNTS,
    ConfigMap,
    ObjectMeta,
    Secret,
    ServiceAccount,
)

USER, PASSWORD = "user", "password"
"""The login for private images."""


class SharedObjects:
    """The owner of those objects, who changes them, takes them away and brings them back."""

    def __init__(self, api: ApiServer, chance: random.Random) -> None:
        self._api = api
        self._chance = chance

    def create_all(self) -> None:
        """Create every object, with some content."""
        account = ServiceAccount(metadata=ObjectMeta(name=ACCOUNT, namespace=NAMESPACE))
        self._api.create(SERVICE_ACCOUNTS, account)
        logins = {"auths": {PRIVATE: {"username": USER, "password": PASSWORD}}}
        login = Secret(
            metadata=ObjectMeta(name=LOGIN, namespace=NAMESPACE),
            type="kubernetes.io/dockerconfigjson",
            data={".dockerconfigjson": json.dumps(logins).encode()},
        )
        self._api.create(SECRETS, login)
        for name in (*SETTINGS, *PASSWORDS):
            self.create(name)

    def any_name(self) -> str:
        """The name of a config map or secret, which may be away."""
        return self._chance.choice((*SETTINGS, *PASSWORDS))

    def create(self, name: str) -> None:
        """Create a config map or secret with new content."""
        metadata, turn = ObjectMeta(name=name, namespace=NAMESPACE), self._turn()
        if name in PASSWORDS:
            self._api.create(SECRETS, Secret(metadata=metadata, data={"turn": turn.encode()}))
        else:
            self._api.create(CONFIG_MAPS, ConfigMap(metadata=metadata, data={"turn": turn}))

    def change(self, name: str) -> None:
        """Change a config map or secret, if it is there."""
        turn = self._turn()
        if secret := self._api.find(SECRETS, name, NAMESPACE):
            self._api.update(SECRETS, evolve(secret, data={"turn": turn.encode()}))
        elif settings := self._api.find(CONFIG_MAPS, name, NAMESPACE):
            self._api.update(CONFIG_MAPS, evolve(settings, data={"turn": turn}))

    def take_away(self, name: str) -> bool:
        """Delete a config map or secret; False if it is away already."""
        if self._api.find(SECRETS, name, NAMESPACE):
            self._api.delete(SECRETS, name, NAMESPACE)
        elif self._api.find(CONFIG_MAPS, name, NAMESPACE):
            self._api.delete(CONFIG_MAPS, name, NAMESPACE)
        else:
            return False
        return True

    def _turn(self) -> str:
        return str(self._chance.getrandbits(20))


def files_of(api: ApiServer, name: str) -> Mapping[str, bytes]:
    """What a volume of that config map or secret has to hold."""
    if name in PASSWORDS:
        return api.get(SECRETS, name, NAMESPACE).data
    data = api.get(CONFIG_MAPS, name, NAMESPACE).data
    return {key: text.encode() for key, text in data.items()}
