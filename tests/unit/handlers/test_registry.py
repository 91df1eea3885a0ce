"""Keys find the handlers that code has registered, and nothing else."""

from collections.abc import Collection, Mapping

import pytest

from holdfast.errors import ConfigError, DefinitionError, HandlerForbidden, UnknownHandler
from holdfast.handlers import FunctionHandler, Handler, HandlerRegistry, JobContext


class Mail(Handler):
    def handle(self, context: JobContext) -> object:
        return "sent"


class NeedsArguments(Mail):
    def __init__(self, server: str) -> None:
        self.server = server


def send(to: str) -> None: ...


def registry_with(*keys: str, allowlist: Mapping[str, Collection[str]] | None = None) -> HandlerRegistry:
    registry = HandlerRegistry(allowlist)
    for key in keys:
        registry.register(key, Mail)
    return registry


def test_an_instance_a_class_and_a_function_can_be_registered() -> None:
    registry = HandlerRegistry()
    instance, function = NeedsArguments("smtp"), FunctionHandler(send)
    registry.register("instance", instance)
    registry.register("class", Mail)
    registry.register("handler", function)
    registry.register("function", send)
    assert registry.resolve("instance") is instance
    assert isinstance(registry.resolve("class"), Mail)
    assert registry.resolve("handler") is function
    wrapped = registry.resolve("function")
    assert isinstance(wrapped, FunctionHandler)
    assert wrapped.function is send
    assert registry.keys() == ("class", "function", "handler", "instance")


def test_registering_the_same_object_again_changes_nothing() -> None:
    registry = HandlerRegistry()
    assert registry.register("mail", Mail) is registry.register("mail", Mail)


def test_a_key_cannot_be_taken_twice() -> None:
    registry = registry_with("mail")
    with pytest.raises(DefinitionError, match=r"'mail' is already used by .*Mail; register .*send under another key"):
        registry.register("mail", send)


def test_a_class_that_needs_arguments_is_refused() -> None:
    with pytest.raises(DefinitionError, match=r"NeedsArguments cannot be created without arguments .* register an"):
        HandlerRegistry().register("mail", NeedsArguments)


@pytest.mark.parametrize("wrong", [dict, 5, "os.system"])
def test_what_is_no_handler_is_refused(wrong: object) -> None:
    with pytest.raises(DefinitionError, match="handler 'mail'"):
        HandlerRegistry().register("mail", wrong)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_a_key_that_no_job_could_have_is_refused() -> None:
    with pytest.raises(DefinitionError, match="is not a valid handler key"):
        HandlerRegistry().register("mail; rm", Mail)


def test_a_payload_type_that_no_json_could_fill_is_refused() -> None:
    class Wrong(Mail):
        payload_type = HandlerRegistry

    with pytest.raises(DefinitionError, match=r"payload_type of handler 'mail' .*HandlerRegistry is not a JSON type"):
        HandlerRegistry().register("mail", Wrong)


def test_an_async_hook_beside_a_plain_handle_is_refused() -> None:
    class Wrong(Mail):
        async def before_run(self, context: JobContext) -> object:
            return None

    with pytest.raises(DefinitionError, match="the hook would not be awaited"):
        HandlerRegistry().register("mail", Wrong)


def test_an_unknown_key_is_answered_with_the_nearest_and_the_known_ones() -> None:
    with pytest.raises(UnknownHandler) as raised:
        registry_with("send_mail", "resize").resolve("sned_mail")
    assert str(raised.value) == (
        "no handler 'sned_mail' is registered; did you mean 'send_mail'? known handlers: 'resize', 'send_mail'"
    )


def test_a_long_list_of_known_keys_is_cut() -> None:
    with pytest.raises(UnknownHandler, match=r"'job19' and 5 more$"):
        registry_with(*(f"job{number:02}" for number in range(25))).resolve("x")


@pytest.mark.parametrize(
    "key", ["os.system", "__builtins__.eval", "holdfast.handlers.contract:Handler", "mаil", "", "\x1b[31m", "m" * 9999]
)
def test_a_key_out_of_a_message_is_never_imported_or_followed(key: str) -> None:
    with pytest.raises(UnknownHandler) as raised:
        registry_with("mail").resolve(key)
    assert "\x1b" not in str(raised.value)
    assert len(str(raised.value)) < 400


def test_a_queue_the_allowlist_leaves_out_may_run_everything() -> None:
    registry = registry_with("mail", allowlist={"other": ["resize"]})
    assert registry.resolve_for("mail", "default") is registry.resolve("mail")


def test_a_queue_may_run_only_what_its_allowlist_names() -> None:
    registry = registry_with("mail", "resize", allowlist={"images": ["resize"]})
    assert registry.resolve_for("resize", "images") is registry.resolve("resize")
    with pytest.raises(HandlerForbidden, match=r"queue 'images' may not run handler 'mail'; its allowlist has 'res"):
        registry.resolve_for("mail", "images")


def test_an_empty_allowlist_forbids_everything() -> None:
    with pytest.raises(HandlerForbidden, match="its allowlist has none"):
        registry_with("mail", allowlist={"default": []}).resolve_for("mail", "default")


def test_what_is_forbidden_is_so_before_anybody_looks_whether_it_exists() -> None:
    with pytest.raises(HandlerForbidden):
        registry_with(allowlist={"default": ["mail"]}).resolve_for("os.system", "default")


def test_an_allowlist_written_as_text_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must be a list of handler keys, like \['mail'\]"):
        HandlerRegistry({"default": "mail"})
