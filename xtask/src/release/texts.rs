//! [`write`]: makes the texts of an archive from those of the source tree.
//!
//! A reader of an archive has no source tree: the texts leave out the build, and name INSTALL.txt instead. Invariant: every link in these
//! texts leads to something in the archive or on the web; other links become plain words.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};

use super::links::{self, Link};

/// The README's lines for people who build the program.
const BUILD: &str = "```console\n$ cargo install --locked --path crates/cli\n$ tokenmill chat demo\n```\n";
/// The lines that replace them in an archive's README.
const TRY: &str = "[INSTALL.txt](INSTALL.txt) describes the installation of this program. To try it, in this folder:\n\n\
    ```console\n$ ./tokenmill chat demo\n```\n";
/// The paragraph on the requirements of a build.
const NEEDS: &str = "You need [Rust]";
/// Sections for readers who have the sources.
const OF_SOURCES: [&str; 4] = ["As a library", "Deployment", "Tests", "More"];
/// The last section of an archive's README.
const MORE: &str = "## More\n\n\
    [docs/serving.md](docs/serving.md) explains limits, keys, TLS, metrics and replicas, [docs/performance.md](docs/performance.md) has the\n\
    measurements, [docs/glossary.md](docs/glossary.md) the vocabulary, [docs/decisions](docs/decisions/README.md) the reasons,\n\
    [CHANGELOG](CHANGELOG.md) what changed. THIRD-PARTY.txt has the licences of what the program is made of.\n\n\
    Licensed under [MIT](LICENSE-MIT) or [Apache-2.0](LICENSE-APACHE), at your option.\n";

/// Writes the texts to an archive's folder: README, changelog, licences, the pages that `--help` refers to, and INSTALL.txt.
///
/// # Errors
/// Fails if a text of the source tree differs from the expected form, and on errors of the system.
pub(super) fn write(folder: &Path, instructions: &str) -> anyhow::Result<()> {
    let root = crate::workspace_root();
    for file in ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md"] {
        fs::copy(root.join(file), folder.join(file))?;
    }
    fs::write(
        folder.join("README.md"),
        readme(&fs::read_to_string(root.join("README.md"))?)?,
    )?;
    fs::write(folder.join("INSTALL.txt"), instructions)?;
    super::copy_folder(&root.join("docs"), &folder.join("docs"))?;
    for path in pages(folder)? {
        let text = fs::read_to_string(&path)?;
        fs::write(&path, links::replaced(&text, |link| leads(link, &path, folder)))?;
    }
    Ok(())
}

/// Makes an archive's README from that of the source tree.
fn readme(source: &str) -> anyhow::Result<String> {
    let (before, after) = source
        .split_once(BUILD)
        .context("README.md does not say how to build it first")?;
    let mut text = format!("{before}{TRY}{after}");
    let needs = text
        .find(NEEDS)
        .context("README.md does not say what a build needs")?;
    let end = text[needs..].find("\n\n").context("README.md ends early")?;
    text.replace_range(needs..needs + end + 2, "");
    for section in OF_SOURCES {
        let begin = text.find(&format!("\n## {section}\n"));
        let begin = begin.with_context(|| format!("README.md has no section `{section}`"))?;
        let end = text[begin + 1..]
            .find("\n## ")
            .map_or(text.len(), |end| begin + 1 + end);
        text.replace_range(begin..end, "");
    }
    ensure!(
        !text.contains("cargo "),
        "README.md names cargo in a part for all"
    );
    Ok(format!("{}\n\n{MORE}", text.trim_end()))
}

/// Returns whether the target of a page's link exists: on the web, or as a file of the folder with its heading.
fn leads(link: &Link<'_>, page: &Path, folder: &Path) -> bool {
    if link.is_on_web() {
        return true;
    }
    let (path, heading) = link.target.split_once('#').unwrap_or((link.target, ""));
    let found = match path {
        "" => Some(page.to_owned()),
        _ => inside(page.parent().unwrap_or(folder), path, folder),
    };
    let Some(found) = found.filter(|path| path.exists()) else {
        return false;
    };
    heading.is_empty() || fs::read_to_string(found).is_ok_and(|text| links::has_heading(&text, heading))
}

/// Returns the place of a relative path, unless it leads out of the folder.
fn inside(from: &Path, path: &str, folder: &Path) -> Option<PathBuf> {
    let mut place = from.to_owned();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." if place == folder => return None,
            ".." => drop(place.pop()),
            _ => place.push(part),
        }
    }
    Some(place)
}

/// Lists the pages of a folder, in Markdown.
fn pages(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(pages(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_of_an_archive_leads_somewhere() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "To install it ...\n").unwrap();
        let mut n_links = 0;
        for page in pages(folder.path()).unwrap() {
            let text = fs::read_to_string(&page).unwrap();
            for link in links::links(&text) {
                n_links += 1;
                assert!(
                    leads(&link, &page, folder.path()),
                    "{}: {}",
                    page.display(),
                    link.target
                );
            }
        }
        assert!(n_links > 100, "{n_links}");
        let readme = fs::read_to_string(folder.path().join("README.md")).unwrap();
        assert!(
            readme.contains("(INSTALL.txt)") && readme.contains("\n## Commands\n"),
            "{readme}"
        );
        for absent in ["cargo", "rustup", "crates/", "bindings/", "deploy/", "## Tests"] {
            assert!(!readme.contains(absent), "{absent}: {readme}");
        }
        // Broken links are found.
        let page = folder.path().join("docs/models.md");
        for (target, expected) in [
            ("vision.md", true),
            ("../README.md#commands", true),
            ("../README.md#tests", false),
            ("../crates/cli", false),
            ("../../etc", false),
            ("https://example.org", true),
        ] {
            let link = Link { text: "", target };
            assert_eq!(leads(&link, &page, folder.path()), expected, "{target}");
        }
    }
}
