"""Several addresses in one `url`: a mistake in them is one line; and the bound on requests that are sent again."""

import pytest

from clients import (
    AddressError,
    AsyncModel,
    InvalidInputError,
    Model,
    ServerUnreachableError,
    Tls,
    TlsError,
)
from clients.connection import BlockingConnection


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("a:8001,,b:8001", "an address is empty"),
        ("a:8001,", "an address is empty"),
        (",", "an address is empty"),
        ("a:8001, A:8001", "a:8001 is there twice"),
        ("grpc://a:8001,a:8001", "is there twice"),
        ("grpc://a:8001,http://b:8000", "grpc:// and http:// in one list"),
        ("a:8001,grpcs://b:8001", "no scheme and grpcs:// in one list"),
        ("dns:///a:8001,b:8001", "Write it alone"),
        ("a:8001,dns:///b:8001", "Write it alone"),
        ("a:8001,b", "b: not an address"),
        ("a:8001;b:8001", "not an address"),
        ("http://a:8000,http//b:8000", "not an address"),
    ],
)
def test_a_wrong_list_of_addresses_is_one_line(url: str, words: str) -> None:
    for client in (Model, AsyncModel):
        with pytest.raises(AddressError, match=words) as refused:
            client("picky", url=url)
        assert "\n" not in str(refused.value)


def test_arguments_that_contradict_each_other_are_refused() -> None:
    url = "a:8001,b:8001"
    with pytest.raises(AddressError, match="needs the HTTP one"):
        Model("picky", url="grpc://a:8001,b:8001", transport="http")
    with pytest.raises(AddressError, match="a transport of your own needs one address"):
        Model("picky", url=url, transport=BlockingConnection("a:8001"))
    with pytest.raises(InvalidInputError, match="Give one of them"):
        Model("picky", url=url, idempotent=False, try_timeout_s=1)
    with pytest.raises(InvalidInputError, match="try_timeout_s is 0: no time"):
        Model("picky", url=url, try_timeout_s=0)
    with pytest.raises(TlsError, match=r"absent\.pem"):
        Model("picky", url=url, tls=Tls(ca="absent.pem"))
    with pytest.raises(ServerUnreachableError, match=r"absent\.invalid:8001: the name has no address"):
        Model("picky", url="dns:///absent.invalid:8001")
