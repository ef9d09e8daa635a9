"""10xx: invalid settings, files and flags."""

from penstock.model.errors import NotFoundError, UsageError


class SettingUnknown(UsageError):
    code = "PEN-1001"
    text = "{where}: unknown key `{key}`"
    hint = "Known keys here: {known}."


class SettingInvalid(UsageError):
    code = "PEN-1002"
    text = "{where}: `{key}` is {value!r}, {expected}"
    hint = "Correct the value and run the command again."


class SettingsUnreadable(UsageError):
    code = "PEN-1003"
    text = "{path}: cannot be read as YAML: {reason}"
    hint = "Check that the file exists, is readable and is a YAML mapping."


class ExtraMissing(UsageError):
    code = "PEN-1004"
    text = "{what} needs the package `{module}`, which is not installed"
    hint = "Install it with: pip install 'penstock[{extra}]'"


class NameInvalid(UsageError):
    code = "PEN-1005"
    text = "{value!r} is not a {kind}: expected {expected}"
    hint = "Copy the id from the listing that showed it."


class SettingUnexplained(NotFoundError):
    code = "PEN-1007"
    text = "no settings file has a key `{key}`"
    hint = "docs/settings.md lists all; `penstock config print FILE` shows those of a file."


class UsageInvalid(UsageError):
    code = "PEN-1006"
    text = "{reason}"
    hint = "{way_out}"
