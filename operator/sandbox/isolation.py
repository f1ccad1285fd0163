"""What the pod can see of its own isolation, before there is any code in it. The operator draws the conclusions."""

_WHOLE = ["0", "0", "4294967295"]


def boot_id(path="/proc/sys/kernel/random/boot_id"):
    """What the kernel that this runs on has made up when it was started; empty if it has nothing of the kind."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def in_user_namespace(path="/proc/self/uid_map"):
    """True if users are others outside of this pod: not all of them are mapped to themselves."""
    try:
        with open(path) as file:
            return [line.split() for line in file] != [_WHOLE]
    except OSError:
        return False


def facts():
    """For the report."""
    return {"bootId": boot_id(), "userNamespace": in_user_namespace()}
