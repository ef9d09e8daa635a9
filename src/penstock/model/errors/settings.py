"""10xx: settings, files and flags that cannot be taken as they stand."""

from penstock.model.errors import Exit, Fault, PenstockError


class SettingUnknown(PenstockError):
    code = "PEN-1001"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{where}: unknown key `{key}`"
    hint = "Known keys here: {known}."


class SettingInvalid(PenstockError):
    code = "PEN-1002"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{where}: `{key}` is {value!r}, {expected}"
    hint = "Correct the value and run the command again."


class SettingsUnreadable(PenstockError):
    code = "PEN-1003"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{path}: cannot be read as YAML: {reason}"
    hint = "Check that the file exists, is readable and is a YAML mapping."


class ExtraMissing(PenstockError):
    code = "PEN-1004"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{what} needs the package `{module}`, which is not installed"
    hint = "Install it with: pip install 'penstock[{extra}]'"


class NameInvalid(PenstockError):
    code = "PEN-1005"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{value!r} is not a {kind}: expected {expected}"
    hint = "Copy the id from the listing that showed it."


class UsageInvalid(PenstockError):
    code = "PEN-1006"
    fault = Fault.CALLER
    exit_code = Exit.USAGE
    text = "{reason}"
    hint = "{way_out}"
