//! The licences of a program's packages: a list of the packages, and each text of a licence once. Invariant:
//! every linked package is in the list.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::Context;
use serde_json::Value;

use crate::{entries, text as text_of};

/// The program's package.
const PROGRAM: &str = "tokenmill-cli";

/// Longest text of a licence; longer files are something else.
const MAX_TEXT_BYTES: u64 = 1 << 18;

/// Returns the list and the texts for a target.
///
/// # Errors
/// Returns the error of cargo.
pub(super) fn text(target: &str, has_gpu: bool) -> anyhow::Result<String> {
    let filter = format!("--filter-platform={target}");
    let mut args = vec!["--locked", &filter, "--manifest-path", "crates/cli/Cargo.toml"];
    if !has_gpu {
        args.push("--no-default-features");
    }
    let metadata = crate::metadata(&args).context("cannot list the packages")?;
    let linked = linked(&metadata)?;
    let mut list = String::new();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in entries(&metadata["packages"]) {
        if !linked.contains(text_of(&package["id"])) || package["source"].is_null() {
            continue;
        }
        let license = package["license"].as_str().unwrap_or("see its text");
        let name = text_of(&package["name"]);
        let _ = writeln!(list, "{name} {}: {license}", text_of(&package["version"]));
        let folder = Path::new(text_of(&package["manifest_path"]))
            .parent()
            .context("a manifest lies in a folder")?;
        for text in texts_of(folder)? {
            texts.entry(text).or_default().push(name.to_owned());
        }
    }
    let mut all = format!("This program contains these packages of other authors.\n\n{list}");
    for (text, packages) in texts {
        let rule = "-".repeat(100);
        let _ = write!(
            all,
            "\n{rule}\n{}\n{rule}\n\n{}\n",
            packages.join(", "),
            text.trim_end()
        );
    }
    Ok(all)
}

/// Returns the packages that the program links, including itself: no build tools, nothing of tests.
fn linked(metadata: &Value) -> anyhow::Result<BTreeSet<&str>> {
    let nodes = entries(&metadata["resolve"]["nodes"]);
    let program = (entries(&metadata["packages"]).iter())
        .find(|package| package["name"] == PROGRAM)
        .context("there is no package of the program")?;
    let mut found = BTreeSet::new();
    let mut open = vec![text_of(&program["id"])];
    while let Some(id) = open.pop() {
        let Some(node) = nodes.iter().find(|node| node["id"] == id) else {
            continue;
        };
        if !found.insert(id) {
            continue;
        }
        // A kind without a name is a normal dependency.
        let is_normal = |dependency: &&Value| {
            (entries(&dependency["dep_kinds"]).iter()).any(|kind| kind["kind"].is_null())
        };
        let normal = entries(&node["deps"]).iter().filter(is_normal);
        open.extend(normal.map(|dependency| text_of(&dependency["pkg"])));
    }
    Ok(found)
}

/// Returns the texts of licences in a package's folder.
fn texts_of(folder: &Path) -> anyhow::Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_license = ["LICEN", "COPYING", "NOTICE", "UNLICENSE"]
            .iter()
            .any(|begin| name.starts_with(begin));
        let metadata = entry.metadata()?;
        if is_license && metadata.is_file() && metadata.len() <= MAX_TEXT_BYTES {
            texts.push(String::from_utf8_lossy(&fs::read(entry.path())?).into_owned());
        }
    }
    texts.sort();
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linked_is_listed_with_its_texts() {
        let text = text("x86_64-unknown-linux-gnu", true).unwrap();
        assert!(text.contains("\nclap 4."), "a package of the program");
        assert!(text.contains("Permission is hereby granted"), "a text");
        for other in ["\ninsta ", "\ncriterion ", "\ntokenmill-gguf "] {
            assert!(!text.contains(other), "{other} is none of them");
        }
    }
}
