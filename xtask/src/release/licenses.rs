//! The licences of what a program is built from: a list of the packages, and each text of a licence once.
//!
//! Separate because it asks cargo alone. Invariant: every package that is linked in stands in the list.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::Path,
};

use anyhow::Context;
use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, PackageId};

/// The program's package.
const PROGRAM: &str = "tokenmill-cli";

/// Longest text of a licence; longer files are something else.
const MAX_TEXT_BYTES: u64 = 1 << 18;

/// The list and the texts for a target.
///
/// # Errors
/// What cargo says.
pub(super) fn text(target: &str, has_gpu: bool) -> anyhow::Result<String> {
    let mut command = MetadataCommand::new();
    command
        .manifest_path(crate::workspace_root().join("crates/cli/Cargo.toml"))
        .other_options(["--locked".to_owned(), format!("--filter-platform={target}")]);
    if !has_gpu {
        command.features(CargoOpt::NoDefaultFeatures);
    }
    let metadata = command.exec().context("cannot list the packages")?;
    let linked = linked(&metadata)?;
    let mut list = String::new();
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in &metadata.packages {
        if !linked.contains(&package.id) || package.source.is_none() {
            continue;
        }
        let license = package.license.as_deref().unwrap_or("see its text");
        let _ = writeln!(list, "{} {}: {license}", package.name, package.version);
        let folder = package
            .manifest_path
            .parent()
            .context("a manifest lies in a folder")?;
        for text in texts_of(folder.as_std_path())? {
            texts.entry(text).or_default().push(package.name.to_string());
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

/// The packages that the program links, itself included: no tools of the build, nothing of tests.
fn linked(metadata: &Metadata) -> anyhow::Result<BTreeSet<PackageId>> {
    let resolve = metadata.resolve.as_ref().context("cargo has resolved nothing")?;
    let program = (metadata.packages.iter())
        .find(|package| package.name.as_str() == PROGRAM)
        .context("there is no package of the program")?;
    let mut found = BTreeSet::new();
    let mut open = vec![program.id.clone()];
    while let Some(id) = open.pop() {
        let Some(node) = resolve.nodes.iter().find(|node| node.id == id) else {
            continue;
        };
        if !found.insert(id) {
            continue;
        }
        let normal = node.deps.iter().filter(|dependency| {
            (dependency.dep_kinds.iter()).any(|kind| kind.kind == DependencyKind::Normal)
        });
        open.extend(normal.map(|dependency| dependency.pkg.clone()));
    }
    Ok(found)
}

/// The texts of licences in a package's folder.
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
