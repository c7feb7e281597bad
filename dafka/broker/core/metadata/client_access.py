"""The ACLs and the users that clients change: a part of the cluster's state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from dafka.broker.core.acls import EVERY_NAME, EVERY_USER, PRINCIPAL_PREFIX, Acl
from dafka.broker.core.error_codes import ErrorCode
from dafka.broker.core.metadata.commands import CreateAcls, DeleteAcls, DeleteScramCredential, SetScramCredential
from dafka.broker.core.metadata.outcome import DONE, Outcome
from dafka.broker.core.metadata.state_records import ACL, SCRAM, StateRecords, decode_records
from dafka.broker.core.scram_credentials import ScramCredential, ScramMechanism

ENTRIES_MAX = 100_000
"""How many ACLs a cluster has at most, and how many credentials."""


class ClientAccess:
    """The ACLs of a cluster, and the SCRAM credentials of its users.

    `version` rises with each change.
    """

    def __init__(self, records: StateRecords | None = None) -> None:
        self.version = 0
        self._records = records or StateRecords()
        self._acls: dict[str, dict[Acl, None]] = {}
        self._acl_count = 0
        self._credentials: dict[str, dict[ScramMechanism, ScramCredential]] = {}

    # ACLs

    def list_acls(self) -> Iterator[Acl]:
        """Yield all ACLs."""
        return chain.from_iterable(self._acls.values())

    def list_acls_of(self, user: str, host: str) -> tuple[Acl, ...]:
        """Return the ACLs that count for a user at an address."""
        return tuple(each for each in self._list_acls_for(user) if each.counts_for(user, host))

    def names_host_for(self, user: str) -> bool:
        """Return whether what a user may do depends on its address."""
        return any(each.host != EVERY_NAME for each in self._list_acls_for(user))

    def _list_acls_for(self, user: str) -> Iterator[Acl]:
        """Yield the ACLs of a user and of all users, for all addresses."""
        return chain.from_iterable(self._acls.get(each, ()) for each in (EVERY_USER, PRINCIPAL_PREFIX + user))

    def has_acl(self, acl: Acl) -> bool:
        """Return whether an ACL exists."""
        return acl in self._acls.get(acl.principal, ())

    def create_acls(self, command: CreateAcls) -> Outcome:
        """Add ACLs."""
        added = [each for each in dict.fromkeys(command.acls) if not self.has_acl(each)]
        if self._acl_count + len(added) > ENTRIES_MAX:
            return Outcome(ErrorCode.POLICY_VIOLATION, f"a cluster has {ENTRIES_MAX} ACLs at most: delete some first")
        self._put_acls(added)
        for each in added:
            self._records.put(_key_of(each), each)
        return DONE

    def delete_acls(self, command: DeleteAcls) -> Outcome:
        """Remove ACLs. It does not matter whether they exist."""
        self.version += 1
        for each in filter(self.has_acl, command.acls):
            del self._acls[each.principal][each]
            if not self._acls[each.principal]:
                del self._acls[each.principal]
            self._acl_count -= 1
            self._records.remove(_key_of(each))
        return DONE

    def _put_acls(self, acls: Iterable[Acl]) -> None:
        self.version += 1
        for each in acls:
            self._acls.setdefault(each.principal, {})[each] = None
            self._acl_count += 1

    # Credentials

    def list_credentials(self) -> Mapping[str, Mapping[ScramMechanism, ScramCredential]]:
        """Return the credentials of all users, by user and mechanism."""
        return self._credentials

    def find_credentials(self, user: str) -> Mapping[ScramMechanism, ScramCredential]:
        """Return the credentials of a user by mechanism. A user who does not exist has none."""
        return self._credentials.get(user, {})

    def set_credential(self, command: SetScramCredential) -> Outcome:
        """Give a user a credential."""
        credential = command.credential
        if credential.user not in self._credentials and len(self._credentials) >= ENTRIES_MAX:
            return Outcome(ErrorCode.POLICY_VIOLATION, f"a cluster has {ENTRIES_MAX} users at most: delete some first")
        self._put_credential(credential)
        self._records.put(f"{SCRAM}{credential.mechanism.value}/{credential.user}", credential)
        return DONE

    def delete_credential(self, command: DeleteScramCredential) -> Outcome:
        """Take a credential from a user. It does not matter whether it exists."""
        self.version += 1
        found = self._credentials.get(command.user, {})
        if found.pop(command.mechanism, None) is not None:
            self._records.remove(f"{SCRAM}{command.mechanism.value}/{command.user}")
        if not found:
            self._credentials.pop(command.user, None)
        return DONE

    def _put_credential(self, credential: ScramCredential) -> None:
        self.version += 1
        self._credentials.setdefault(credential.user, {})[credential.mechanism] = credential

    def restore(self, records: Mapping[bytes, bytes]) -> None:
        """Replace the ACLs and credentials by the stored ones."""
        self._acls.clear()
        self._acl_count = 0
        self._put_acls(decode_records(records.items(), ACL, Acl))
        self._credentials.clear()
        for credential in decode_records(records.items(), SCRAM, ScramCredential):
            self._put_credential(credential)


def _key_of(acl: Acl) -> str:
    """Return the unique key of an ACL: the lengths show where its texts begin."""
    kind, pattern, operation, effect = acl.resource_type, acl.pattern_type, acl.operation, acl.effect
    numbers = f"{kind:d}/{pattern:d}/{operation:d}/{effect:d}"
    return f"{ACL}{numbers}/{len(acl.host)}/{len(acl.principal)}/{acl.host}/{acl.principal}/{acl.name}"
