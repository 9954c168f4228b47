"""What the wheel holds. All else is in pyproject.toml, which cannot put a folder from the top of the checkout into a package."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["sjdvp", "sjdvp.*", "sjdvp_cli"]), "sjdvp.profile_files"],
    package_dir={"sjdvp.profile_files": "profiles"},
    package_data={
        "sjdvp": ["py.typed"],
        "sjdvp.profile_files": ["*.yaml"],
        "sjdvp.backbones.emoji": ["*.txt", "model/*", "recipe/*.txt"],
        "sjdvp.report": ["templates/*"],
    },
)
