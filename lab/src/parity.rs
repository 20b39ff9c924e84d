//! `cargo lab parity`: every parity fixture, in every type, on every device, against reference data.
//!
//! The comparison is the test kit's; this command chooses the fixtures and prints the table. Invariant: the exit code is
//! zero only if something was compared and nothing failed; a comparison that cannot be computed, or misses its limit for a
//! known reason, has a row that says so.

mod adapters;
mod devices;

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokenmill_backend::{BackendError, KvType};
use tokenmill_model::{LoadError, Model};
use tokenmill_quant::format;
use tokenmill_testkit::{
    Reference,
    parity::{Comparison, ParityDevice, ParityError, compare, known_miss},
};

use self::devices::{DeviceChoice, devices};
use crate::measure::record;

/// Compare models with reference data; a non-zero exit code if any differs.
#[derive(clap::Args)]
pub struct Args {
    /// Folder of the fixtures, or the one around it that tests take.
    #[arg(long)]
    data: PathBuf,
    /// Only rows whose `MODEL/TYPE` contains this.
    #[arg(long, default_value = "")]
    filter: String,
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = DeviceChoice::Cpu)]
    device: DeviceChoice,
    /// Also write the rows to this file, as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// One row of the table.
struct Row {
    model: String,
    ty: String,
    kv: &'static str,
    device: &'static str,
    outcome: Outcome,
}

enum Outcome {
    Compared(Comparison),
    /// Exceeds a limit for a reason that is known.
    KnownMiss(Comparison, &'static str),
    Unsupported(String),
    Failed(String),
}

/// Runs the command.
///
/// # Errors
/// Where the fixtures cannot be read, nothing matched, or a row failed.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let devices = devices(args.device)?;
    let data = fixtures_folder(&args.data);
    let mut folders: Vec<PathBuf> = std::fs::read_dir(&data)
        .with_context(|| format!("cannot list {}", data.display()))?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    folders.retain(|folder| folder.join("ref.json").is_file());
    folders.sort();
    let adapters = adapters::folders(&data);
    ensure!(
        !folders.is_empty() || !adapters.is_empty(),
        "no fixture (a folder with ref.json) in {}",
        data.display()
    );

    println!(
        "{:<18} {:<8} {:<4} {:<6} {:>9} {:>9} {:>7} {:>8}  verdict",
        "model", "type", "KV", "device", "max", "KL", "top-1", "greedy"
    );
    let mut n_compared = 0;
    let mut n_failed = 0;
    let mut n_known_misses = 0;
    let mut json_rows = Vec::new();
    for folder in folders {
        for device in &devices {
            for row in rows(&folder, device, &args.filter)? {
                println!("{}", row.render());
                n_compared += usize::from(matches!(row.outcome, Outcome::Compared(_)));
                n_failed += usize::from(row.has_failed());
                n_known_misses += usize::from(matches!(row.outcome, Outcome::KnownMiss(..)));
                json_rows.push(row.to_json());
            }
        }
    }
    for folder in adapters {
        for device in &devices {
            for row in adapters::rows(&folder, &data, device, &args.filter)? {
                println!("{}", row.render());
                n_compared += usize::from(matches!(row.outcome, Outcome::Compared(_)));
                n_failed += usize::from(row.has_failed());
                json_rows.push(row.to_json());
            }
        }
    }
    let report = json!({ "compared": n_compared, "failed": n_failed, "rows": json_rows });
    record::write_asked(args.json.as_deref(), &report)?;
    ensure!(n_failed == 0, "{n_failed} of {n_compared} comparisons failed");
    ensure!(n_compared > 0, "nothing was compared");
    match n_known_misses {
        0 => println!("{n_compared} comparisons passed"),
        n => println!("{n_compared} comparisons passed, {n} exceed their limits for a known reason"),
    }
    Ok(())
}

/// Returns the folder of the fixtures: `parity` in the folder that tests take, or the folder itself.
pub(crate) fn fixtures_folder(data: &Path) -> PathBuf {
    let inner = data.join("parity");
    if inner.is_dir() { inner } else { data.to_owned() }
}

/// A model file of a fixture.
struct Candidate {
    /// Name in the table.
    label: String,
    /// The file type whose reference and limits apply.
    ty: String,
    /// The result of opening it.
    model: Result<Model, LoadError>,
}

/// Lists the GGUF files of a fixture and its Hugging Face folder, with both layouts of the configuration, as far as the
/// filter selects them.
fn candidates(folder: &Path, name: &str, reference: &Reference, filter: &str) -> Vec<Candidate> {
    let is_wanted = |label: &str| format!("{name}/{label}").contains(filter);
    let mut candidates = Vec::new();
    for (ty, file) in &reference.facts.types {
        if is_wanted(ty) {
            candidates.push(Candidate {
                label: ty.clone(),
                ty: ty.clone(),
                model: Model::open(folder.join(&file.file)),
            });
        }
    }
    let hf = folder.join("hf");
    for (label, config) in [("hf", "config.json"), ("hf.v5", "config.v5.json")] {
        if is_wanted(label) && hf.join(config).is_file() {
            candidates.push(Candidate {
                label: label.to_owned(),
                ty: reference.folder_type().to_owned(),
                model: Model::from_hf(&hf, &hf.join(config)),
            });
        }
    }
    candidates
}

/// Returns the rows of one fixture on one device.
fn rows(folder: &Path, device: &ParityDevice, filter: &str) -> anyhow::Result<Vec<Row>> {
    let name = folder
        .file_name()
        .context("a fixture has a name")?
        .to_string_lossy()
        .into_owned();
    let reference = Reference::open(folder)?;
    let mut rows = Vec::new();
    for candidate in candidates(folder, &name, &reference, filter) {
        let mut add = |kv, outcome| {
            rows.push(Row {
                model: name.clone(),
                ty: candidate.label.clone(),
                kv,
                device: device.name,
                outcome,
            });
        };
        let model = match &candidate.model {
            Ok(model) => model,
            Err(LoadError::UnknownArchitecture { found, .. }) => {
                add("-", Outcome::Unsupported(found.clone()));
                continue;
            }
            Err(LoadError::UnsupportedFeature { arch, feature }) => {
                add("-", Outcome::Unsupported(format!("{arch} with {feature}")));
                continue;
            }
            Err(error) => {
                add("-", Outcome::Failed(error.to_string()));
                continue;
            }
        };
        let tensors = model.weights().infos();
        if let Some(tensor) = tensors.iter().find(|tensor| format(tensor.ty).is_none()) {
            add("-", Outcome::Unsupported(tensor.ty.name().to_owned()));
            continue;
        }
        let kv_types: &[(KvType, &str)] = if candidate.label == "F32" {
            &[(KvType::F32, "f32"), (KvType::F16, "f16")]
        } else {
            &[(KvType::F32, "f32")]
        };
        for &(kv_type, kv) in kv_types {
            let outcome = match compare(&reference, &candidate.ty, model, device, kv_type) {
                Ok(comparison) if comparison.failures.is_empty() => Outcome::Compared(comparison),
                Ok(comparison) => match known_miss(folder, &candidate.ty, device.activations) {
                    Some(reason) => Outcome::KnownMiss(comparison, reason),
                    None => Outcome::Compared(comparison),
                },
                Err(ParityError::Load(LoadError::Backend(
                    reason @ (BackendError::UnsupportedType { .. } | BackendError::Unsupported { .. }),
                ))) => Outcome::Unsupported(reason.to_string()),
                Err(error) => Outcome::Failed(error.to_string()),
            };
            add(kv, outcome);
        }
    }
    Ok(rows)
}

impl Row {
    fn has_failed(&self) -> bool {
        match &self.outcome {
            Outcome::Compared(comparison) => !comparison.failures.is_empty(),
            Outcome::KnownMiss(..) | Outcome::Unsupported(_) => false,
            Outcome::Failed(_) => true,
        }
    }

    fn to_json(&self) -> Value {
        let mut row = json!({
            "model": self.model,
            "type": self.ty,
            "kv": self.kv,
            "device": self.device,
        });
        let found = match &self.outcome {
            Outcome::Compared(found) | Outcome::KnownMiss(found, _) => json!({
                "max_abs": found.max_abs,
                "rms": found.rms,
                "kl_mean": found.kl_mean,
                "top1": found.top1,
                "greedy_equal_of": found.greedy.map(|(n_equal, n_safe)| [n_equal, n_safe]),
                "failures": found.failures,
            }),
            Outcome::Unsupported(what) => json!({ "unsupported": what }),
            Outcome::Failed(error) => json!({ "error": error }),
        };
        if let (Value::Object(row), Value::Object(found)) = (&mut row, found) {
            row.extend(found);
        }
        if let Outcome::KnownMiss(_, reason) = self.outcome {
            row["known_miss"] = json!(reason);
        }
        row
    }

    fn render(&self) -> String {
        let Self {
            model,
            ty,
            kv,
            device,
            outcome,
        } = self;
        let mut numbers = ["-"; 4].map(str::to_owned);
        let verdict = match outcome {
            Outcome::Compared(comparison) | Outcome::KnownMiss(comparison, _) => {
                numbers[0] = format!("{:.1e}", comparison.max_abs);
                numbers[1] = format!("{:.1e}", comparison.kl_mean);
                numbers[2] = format!("{:.1}%", 100.0 * comparison.top1);
                if let Some((n_equal, n_safe)) = comparison.greedy {
                    numbers[3] = format!("{n_equal}/{n_safe}");
                }
                let failures = comparison.failures.join("; ");
                match outcome {
                    Outcome::KnownMiss(_, reason) => format!("known: {failures}: {reason}"),
                    _ if failures.is_empty() => "ok".to_owned(),
                    _ => format!("FAILED: {failures}"),
                }
            }
            Outcome::Unsupported(what) => format!("unsupported: {what}"),
            Outcome::Failed(error) => format!("FAILED: {error}"),
        };
        let [max, kl, top1, greedy] = numbers;
        format!("{model:<18} {ty:<8} {kv:<4} {device:<6} {max:>9} {kl:>9} {top1:>7} {greedy:>8}  {verdict}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixtures_are_found_from_the_folder_around_them_too() {
        let outer = tempfile::tempdir().unwrap();
        // Neither has fixtures yet: errors name the folder itself.
        assert_eq!(fixtures_folder(outer.path()), outer.path());
        let inner = outer.path().join("parity");
        // A file of that name is no folder of fixtures.
        std::fs::write(&inner, "").unwrap();
        assert_eq!(fixtures_folder(outer.path()), outer.path());
        std::fs::remove_file(&inner).unwrap();
        std::fs::create_dir(&inner).unwrap();
        assert_eq!(fixtures_folder(outer.path()), inner);
        assert_eq!(fixtures_folder(&inner), inner);
        assert_eq!(
            fixtures_folder(&outer.path().join("absent")),
            outer.path().join("absent")
        );
    }
}
