"""Declaring jobs: a function's signature is its contract."""

import pytest

import gendurable as gd
from gendurable.errors import DefinitionError, InvalidValueError


@gd.job(queue="mail", max_attempts=5, timeout=30, version=2)
async def send_mail(ctx: gd.Context, to: str, copies: int = 1) -> dict[str, object]:
    """Send it."""
    return {"to": to, "copies": copies, "ctx": ctx}


def test_a_function_becomes_a_definition_with_one_step():
    """A job is a machine, so everything that holds for machines holds for it."""
    definition = send_mail.definition

    assert (definition.name, definition.version, definition.queue, definition.initial) == (
        "send_mail",
        2,
        "mail",
        "run",
    )
    assert (definition.is_job, definition.max_attempts, definition.steps["run"].timeout_s) == (True, 5, 30.0)
    assert send_mail.__doc__ == "Send it."


async def test_calling_a_job_runs_the_function_here_and_now():
    """A unit test of the function needs no database."""
    assert await send_mail("the context", to="a", copies=2) == {"to": "a", "copies": 2, "ctx": "the context"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "to"),
        ({"to": 7}, r"\$\.to"),
        ({"to": "a", "copies": "two"}, r"\$\.copies"),
        ({"to": "a", "colour": "red"}, "no arguments colour; it takes to, copies"),
        ({"to": "a\0"}, "NUL"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_at_the_insert(arguments, message):
    """E33: the caller made the mistake; a worker hours later could only fail."""
    with pytest.raises(InvalidValueError, match=message):
        send_mail.with_args(**arguments)


def test_a_job_needs_a_context_and_named_arguments():
    """They are stored by name; positions and stars have none."""

    async def nothing() -> None:
        """No context."""

    async def stars(ctx, *names: str) -> None:
        """Any number."""

    async def doubled(ctx, **names: str) -> None:
        """Any names."""

    async def positional(ctx, name, /) -> None:
        """No name to store it under."""

    for function in (nothing, stars, doubled, positional):
        with pytest.raises(DefinitionError):
            gd.job()(function)


@pytest.mark.parametrize(
    "options", [{"version": 0}, {"max_attempts": 0}, {"timeout": 0}, {"queue": ""}, {"name": "a\0"}]
)
def test_an_option_that_cannot_be_used_is_refused_at_the_definition(options):
    """E33: at the import."""
    with pytest.raises((DefinitionError, InvalidValueError)):

        @gd.job(**options)
        async def never(_ctx: gd.Context) -> None:
            """Never declared."""


def test_an_option_that_does_not_exist_is_a_type_error():
    """E33: Python says it best."""
    with pytest.raises(TypeError):
        gd.job(retries=3)
