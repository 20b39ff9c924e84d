//! Checks the imports between crates.
//!
//! The table is the architecture: a crate fails if it is not in the table or imports a crate that its row does not
//! list. The imports come from `cargo metadata`, so the check sees what is built and not what is written.

use serde_json::Value;

use super::Finding;
use crate::{entries, text};

/// A crate and the crates of the workspace that it may import.
struct Layer {
    name: &'static str,
    may_import: &'static [&'static str],
}

const fn layer(name: &'static str, may_import: &'static [&'static str]) -> Layer {
    Layer { name, may_import }
}

const LAYERS: [Layer; 24] = [
    layer("tokenmill-gguf", &[]),
    layer("tokenmill-chart", &[]),
    layer("tokenmill-hub", &["tokenmill-gguf"]),
    layer("tokenmill-image", &[]),
    layer("tokenmill-quant", &["tokenmill-gguf"]),
    layer("tokenmill-convert", &["tokenmill-quant", "tokenmill-gguf"]),
    layer("tokenmill-backend", &["tokenmill-gguf"]),
    layer("tokenmill-cpu-kernels", &["tokenmill-quant", "tokenmill-gguf"]),
    layer(
        "tokenmill-cpu-exec",
        &[
            "tokenmill-backend",
            "tokenmill-cpu-kernels",
            "tokenmill-quant",
            "tokenmill-gguf",
        ],
    ),
    layer(
        "tokenmill-cuda-exec",
        &["tokenmill-backend", "tokenmill-quant", "tokenmill-gguf"],
    ),
    layer("tokenmill-text", &["tokenmill-gguf"]),
    layer(
        "tokenmill-model",
        &["tokenmill-backend", "tokenmill-quant", "tokenmill-gguf"],
    ),
    layer("tokenmill-placed", &["tokenmill-backend", "tokenmill-gguf"]),
    layer("tokenmill-sched", &["tokenmill-backend"]),
    layer(
        "tokenmill-server",
        &[
            "tokenmill",
            "tokenmill-sched",
            "tokenmill-backend",
            "tokenmill-text",
        ],
    ),
    layer(
        "tokenmill",
        &[
            "tokenmill-sched",
            "tokenmill-model",
            "tokenmill-text",
            "tokenmill-backend",
            "tokenmill-cpu-exec",
            "tokenmill-cuda-exec",
            "tokenmill-placed",
            "tokenmill-convert",
            "tokenmill-quant",
            "tokenmill-gguf",
            "tokenmill-hub",
            "tokenmill-image",
        ],
    ),
    layer("tokenmill-python", &["tokenmill"]),
    layer("tokenmill-cli", PRODUCT),
    layer(
        "tokenmill-testkit",
        &[
            "tokenmill-backend",
            "tokenmill-cpu-exec",
            "tokenmill-cuda-exec",
            "tokenmill-gguf",
            "tokenmill-model",
            "tokenmill-quant",
            "tokenmill-sim-driver",
        ],
    ),
    layer("tokenmill-ptx-sim", &[]),
    layer(
        "tokenmill-sim-driver",
        &["tokenmill-cuda-exec", "tokenmill-ptx-sim"],
    ),
    layer("xtask", &[]),
    layer("workspace-comparisons", &[]),
    layer(
        "lab",
        &[
            "tokenmill-gguf",
            "tokenmill-hub",
            "tokenmill-quant",
            "tokenmill-backend",
            "tokenmill-cpu-exec",
            "tokenmill-cuda-exec",
            "tokenmill-text",
            "tokenmill-model",
            "tokenmill-sched",
            "tokenmill-server",
            "tokenmill-testkit",
            "tokenmill-chart",
            "tokenmill-ptx-sim",
            "tokenmill-sim-driver",
        ],
    ),
];

/// Every crate of the product below the command line.
const PRODUCT: &[&str] = &[
    "tokenmill-chart",
    "tokenmill-gguf",
    "tokenmill-hub",
    "tokenmill-image",
    "tokenmill-quant",
    "tokenmill-convert",
    "tokenmill-backend",
    "tokenmill-cpu-exec",
    "tokenmill-cuda-exec",
    "tokenmill-placed",
    "tokenmill-text",
    "tokenmill-model",
    "tokenmill-sched",
    "tokenmill",
    "tokenmill-server",
];

/// Crates that serve development: any crate may use them in its tests, and crates of the product only there.
const DEV_ONLY: [&str; 3] = ["tokenmill-testkit", "tokenmill-ptx-sim", "tokenmill-sim-driver"];

/// Crates that another crate's tests use: a real network serves the requests.
const ORACLES: [(&str, &[&str]); 4] = [
    (
        "tokenmill-placed",
        &[
            "tokenmill-model",
            "tokenmill-sched",
            "tokenmill-cpu-exec",
            "tokenmill-cuda-exec",
            "tokenmill-quant",
        ],
    ),
    ("tokenmill-sched", &["tokenmill-model"]),
    ("tokenmill-model", &["tokenmill-cpu-exec"]),
    ("tokenmill-testkit", &["tokenmill-image", "tokenmill-sched"]),
];

/// External dependencies that only some crates may have.
const RESERVED: [(&str, &[&str]); 3] = [
    ("anyhow", &["tokenmill-cli", "lab", "xtask"]),
    ("clap", &["tokenmill-cli", "lab", "xtask"]),
    ("cudarc", &["tokenmill-cuda-exec"]),
];

/// The purpose of a dependency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The package itself or its build.
    Normal,
    /// Its tests, examples and benchmarks.
    Development,
}

/// Checks every package of the workspace.
pub(super) fn check() -> anyhow::Result<Vec<Finding>> {
    let metadata = crate::metadata(&["--no-deps"])?;
    let packages = entries(&metadata["packages"]);
    let names: Vec<&str> = packages.iter().map(|package| text(&package["name"])).collect();
    let findings = packages.iter().flat_map(|package| check_package(package, &names));
    Ok(findings.collect())
}

fn check_package(package: &Value, workspace: &[&str]) -> Vec<Finding> {
    let name = text(&package["name"]);
    let error = |message: String| Finding::error(format!("package {name}"), message);
    if !LAYERS.iter().any(|layer| layer.name == name) {
        return vec![error(
            "has no row in the layering table, xtask/src/tidy/layers.rs".to_owned(),
        )];
    }
    let judged = entries(&package["dependencies"]).iter().filter_map(|dependency| {
        let other = text(&dependency["name"]);
        let kind = match text(&dependency["kind"]) {
            "dev" => Kind::Development,
            _ => Kind::Normal,
        };
        judge(name, other, workspace.contains(&other), kind)
    });
    judged.map(error).collect()
}

/// Describes what is wrong with a dependency, if anything.
fn judge(name: &str, dependency: &str, is_own: bool, kind: Kind) -> Option<String> {
    let is_dev = kind == Kind::Development;
    if !is_own {
        let (_, owners) = RESERVED.iter().find(|(reserved, _)| *reserved == dependency)?;
        let is_allowed = is_dev || owners.contains(&name);
        return (!is_allowed)
            .then(|| format!("depends on {dependency}, which only {} may", owners.join(", ")));
    }
    let layer = LAYERS.iter().find(|layer| layer.name == name)?;
    let is_oracle = is_dev
        && ORACLES
            .iter()
            .any(|(user, oracles)| *user == name && oracles.contains(&dependency));
    let is_allowed = layer.may_import.contains(&dependency)
        || is_oracle
        || is_dev && (dependency == name || is_below(layer, dependency))
        || DEV_ONLY.contains(&dependency) && is_dev;
    (!is_allowed).then(|| {
        let allowed = match layer.may_import {
            [] => "no crate of the workspace".to_owned(),
            crates => crates.join(", "),
        };
        format!("imports {dependency}, but may import {allowed}")
    })
}

/// Returns whether `layer` depends on `dependency`, directly or through others: its tests may use the same crates.
fn is_below(layer: &Layer, dependency: &str) -> bool {
    (LAYERS
        .iter()
        .filter(|below| layer.may_import.contains(&below.name)))
    .any(|below| below.name == dependency || is_below(below, dependency))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, dependency: &str, kind: Kind, is_allowed: bool) {
        let is_own = dependency.starts_with("tokenmill-");
        let verdict = judge(name, dependency, is_own, kind);
        assert_eq!(
            verdict.is_none(),
            is_allowed,
            "{name} -> {dependency}: {verdict:?}"
        );
    }

    #[test]
    fn imports_go_down_the_layers_only() {
        use Kind::{Development, Normal};
        check("tokenmill-quant", "tokenmill-gguf", Normal, true);
        check("tokenmill-gguf", "tokenmill-quant", Normal, false);
        check("tokenmill-sched", "tokenmill-text", Normal, false);
        check("tokenmill-sched", "tokenmill-text", Development, false);
        check("tokenmill-sched", "tokenmill-quant", Normal, false);
        check("tokenmill-sched", "tokenmill-model", Development, true);
        check("tokenmill-cuda-exec", "tokenmill-cuda-exec", Development, true);
        check("tokenmill-model", "tokenmill-testkit", Development, true);
        check("tokenmill-model", "tokenmill-testkit", Normal, false);
        check("tokenmill-testkit", "tokenmill-placed", Normal, false);
        check("tokenmill-testkit", "tokenmill-cuda-exec", Normal, true);
        check("tokenmill-testkit", "tokenmill-sched", Normal, false);
        check("tokenmill-model", "tokenmill-quant", Normal, true);
        check("tokenmill-model", "tokenmill-cpu-exec", Normal, false);
        check("tokenmill-model", "tokenmill-cpu-exec", Development, true);
        check("tokenmill-cuda-exec", "tokenmill-ptx-sim", Normal, false);
        check("tokenmill-cuda-exec", "tokenmill-quant", Normal, true);
    }

    #[test]
    fn reserved_dependencies_stay_with_their_owners() {
        use Kind::{Development, Normal};
        check("tokenmill-cuda-exec", "cudarc", Normal, true);
        check("tokenmill-model", "cudarc", Normal, false);
        check("tokenmill-model", "anyhow", Normal, false);
        check("tokenmill-model", "anyhow", Development, true);
        check("tokenmill-model", "half", Normal, true);
    }

    #[test]
    fn every_import_of_a_row_is_a_row_itself() {
        for layer in &LAYERS {
            for import in layer.may_import {
                assert!(LAYERS.iter().any(|row| row.name == *import), "{import}");
            }
        }
    }
}
