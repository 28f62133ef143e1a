"""L0: the folder, its names and its versions."""

from collections.abc import Iterator

from serve.doctor.finding import Found, Severity
from serve.doctor.repository import Configuration
from serve.doctor.rule import Example, rule


@rule(
    "L003",
    Severity.ERROR,
    bad=Example('name: "other"'),
    good=Example('name: "example"'),
    refused="directory name must equal model name",
)
def name_is_the_folders(config: Configuration) -> Iterator[Found]:
    """The model's `name` is not the name of its folder.

    tritonserver takes the folder's name as the model's and refuses a configuration with another one:
    "unexpected directory name 'example' for model 'other', directory name must equal model name". The model is then in
    the repository index without a state or a reason; the reason is in the server's log only.

    Source: core, model_config_utils.cc.
    Fix: write the folder's name, or leave `name` out.
    """
    name, folder = config.proto.name, config.model.name
    if name and name != folder:
        yield Found(
            config.at("name"),
            f'name is "{name}", the folder is "{folder}", so the model cannot load. Write name: "{folder}".',
            fix=config.document.replaced(f'"{folder}"', "name"),
        )
