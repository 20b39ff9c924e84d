//! The fixtures of adapters: a folder each in `lora`, next to the folders of networks.
//!
//! An adapter has a base, whose fixture is elsewhere. Invariant: a device that does not support adapters has a row that says
//! so.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;
use tokenmill_backend::AdapterError;
use tokenmill_testkit::{
    Reference,
    adapter_parity::{adapter_cases, compare_adapter},
    parity::{ParityDevice, ParityError},
};

use super::{Outcome, Row};

/// The facts of a fixture about its base.
#[derive(Deserialize)]
struct Facts {
    /// The base's folder, relative to the sets of fixtures.
    base: PathBuf,
}

/// Lists the fixtures in the folder `lora` of a set, in the order of their names.
pub(super) fn folders(data: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(data.join("lora"))
        .into_iter()
        .flatten()
        .flatten();
    let mut folders: Vec<PathBuf> = (entries.map(|entry| entry.path()))
        .filter(|folder| folder.join("ref.json").is_file())
        .collect();
    folders.sort();
    folders
}

/// Returns the rows of one fixture on one device.
pub(super) fn rows(
    folder: &Path,
    data: &Path,
    device: &ParityDevice,
    filter: &str,
) -> anyhow::Result<Vec<Row>> {
    let name = folder.file_name().context("a fixture has a name")?;
    let name = format!("lora/{}", name.to_string_lossy());
    let json = std::fs::read(folder.join("ref.json"))
        .with_context(|| format!("cannot read {}", folder.display()))?;
    let facts: Facts =
        serde_json::from_slice(&json).with_context(|| format!("{}: ref.json", folder.display()))?;
    let base = data.join("..").join(facts.base);
    let reference = Reference::open(folder)?;
    let mut rows = Vec::new();
    for case in adapter_cases(&reference, folder, &base)? {
        if !format!("{name}/{}", case.label).contains(filter) {
            continue;
        }
        let outcome = match compare_adapter(&reference, &case, device) {
            Ok(comparison) => Outcome::Compared(comparison),
            Err(ParityError::Adapter(reason @ AdapterError::Unsupported { .. })) => {
                Outcome::Unsupported(reason.to_string())
            }
            Err(error) => Outcome::Failed(error.to_string()),
        };
        rows.push(Row {
            model: name.clone(),
            ty: case.label,
            kv: "f32",
            device: device.name,
            outcome,
        });
    }
    Ok(rows)
}
