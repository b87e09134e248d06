"""MkDocs hooks that add files outside `docs/` to the site: pages and pictures of `results/`, and `examples/`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("results/*/README.md", "results/*/*.svg", "results/*/*.png", "examples/*.py", "examples/*.json")
LOADS = re.compile(
    r"<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|data)=[\"']?(?:https?:)?//[^>]*>"
    r"|<link\b(?=[^>]*\brel=[\"']?(?:stylesheet|icon|preload|preconnect|modulepreload|prefetch))"
    r"[^>]*?\bhref=[\"']?(?:https?:)?//[^>]*>"
    r"|@import\s*(?:url\()?[\"']?(?:https?:)?//[^;]*;?|url\([\"']?(?:https?:)?//[^)]*\)"
)
"""What a browser loads from elsewhere when it shows a page."""

FOLDER = re.compile(r"\]\((?:\.\./)*((?:results|examples)/[^)]*)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add pages and pictures of experiments and the examples, under their own paths."""
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            files.append(File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, use_directory_urls=False))
    return files


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Return a page as it is; PluginError where it loads anything from elsewhere."""
    if elsewhere := LOADS.search(output):
        raise PluginError(f"{page.file.src_uri}: expected what lies in the site, found {elsewhere[0]}")
    return output


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links to `results/` and `examples/` point into the site, and links from experiments to `docs/`."""
    depth = page.file.src_uri.count("/")
    if page.file.src_uri.startswith("results/"):
        return re.sub(r"\]\(\.\./\.\./(?:docs/)?", "](../../", markdown)
    return FOLDER.sub(lambda match: f"]({'../' * depth}{match[1]})", markdown)
