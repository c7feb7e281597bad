"""The users of a broker: their passwords, what they may do, and how they prove who they are.

Nothing here knows Kafka: each listener of a broker authenticates its clients with the same users and permissions.
"""

from dafka.users.credentials import (
    DEFAULT_ITERATIONS,
    MECHANISMS,
    Credential,
    derive_credential,
    load_scramp,
    verify_password,
)
from dafka.users.login import PLAIN, Login, LoginError, begin_login
from dafka.users.permissions import Permission, Permissions
from dafka.users.tokens import Token, create_token
from dafka.users.users_file import User, UsersFile, find_user_name_problem, read_users, write_users

__all__ = [
    "DEFAULT_ITERATIONS",
    "MECHANISMS",
    "PLAIN",
    "Credential",
    "Login",
    "LoginError",
    "Permission",
    "Permissions",
    "Token",
    "User",
    "UsersFile",
    "begin_login",
    "create_token",
    "derive_credential",
    "find_user_name_problem",
    "load_scramp",
    "read_users",
    "verify_password",
    "write_users",
]
