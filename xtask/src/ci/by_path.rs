//! [`STEPS`]: the table of steps that run if one of their paths changed, and completely once a day.
//!
//! Each proves a claim that few paths can break; other pushes do not pay for it. A path is one that git knows, a file, a
//! folder or a pattern. The list need not be complete, since a day later the step runs anyway.

use std::{fs, process::Command};

use anyhow::{Context, ensure};

use super::{emulated, grids, needs::Need, windows};

/// A step, and when it is due.
pub(super) struct Step {
    pub(super) name: &'static str,
    /// The paths whose changes can break its claim.
    pub(super) paths: &'static [&'static str],
    /// The tools that it needs besides Rust.
    pub(super) needs: &'static [Need],
    pub(super) run: fn() -> anyhow::Result<()>,
}

/// The paths that a target of another system depends on: code that distinguishes systems, and the external packages.
pub(super) const OF_SYSTEMS: &[&str] = &[
    "Cargo.lock",
    "crates/*/Cargo.toml",
    "crates/cli/src/commands/chat*",
    "crates/cli/src/commands/serve*",
    "crates/cli/src/echo.rs",
    "crates/cli/src/input.rs",
    "crates/cli/src/signals.rs",
    "crates/convert/src/output_file.rs",
    "crates/cpu-exec/src/pool/",
    "crates/cpu-kernels/src/simd/",
    "crates/cpu-kernels/src/tile_memory.rs",
    "crates/gguf/src/",
    "crates/hub/src/",
    "crates/quant/src/cpu_features.rs",
    "crates/quant/src/simd.rs",
    "crates/server/src/config/mod.rs",
    "crates/server/src/endpoints/adapters.rs",
    "crates/server/src/endpoints/media_folder.rs",
    "crates/server/src/http/listening.rs",
    "crates/server/src/http/origin.rs",
    "crates/server/src/http/serve.rs",
    "crates/server/src/kv_events/",
    "crates/server/src/lib.rs",
    "crates/server/src/sockets/",
    "crates/tokenmill/src/address_space.rs",
    "crates/tokenmill/src/atomic_write.rs",
    "crates/tokenmill/src/folder_lock.rs",
    "crates/tokenmill/src/low_priority.rs",
    "crates/tokenmill/src/prefix_folder/",
    "crates/tokenmill/src/session/",
];

/// The paths that determine a model's numbers on any device.
macro_rules! network {
    ($($more:literal),* $(,)?) => {
        &[
            "crates/backend/src/",
            "crates/gguf/src/",
            "crates/model/src/",
            "crates/quant/src/",
            "crates/testkit/src/",
            "lab/src/parity*",
            "tests/data/",
            $($more),*
        ]
    };
}

const PYTHON: Need = Need::Program("python3", "python3-venv");

const CHROMIUM: &[Need] = &[
    PYTHON,
    Need::Program("chromium", "chromium"),
    Need::Program("chromedriver", "chromium-driver"),
];

pub(super) const STEPS: &[Step] = &[
    Step {
        name: "parity on the CPU",
        paths: network!["crates/cpu-exec/src/", "crates/cpu-kernels/src/"],
        needs: &[],
        run: || lab(&["parity", "--data", "tests/data", "--device", "cpu"]),
    },
    Step {
        name: "parity on the simulator",
        paths: network![
            "crates/cuda-exec/",
            "crates/ptx-sim/src/",
            "crates/sim-driver/src/"
        ],
        needs: &[],
        run: || lab(&["parity", "--data", "tests/data", "--device", "sim"]),
    },
    Step {
        name: "random grids",
        paths: &[
            "crates/backend/src/",
            "crates/cuda-exec/",
            "crates/cpu-kernels/src/",
            "crates/model/src/",
            "crates/placed/src/",
            "crates/ptx-sim/src/",
            "crates/sim-driver/src/",
            "crates/testkit/src/conformance/",
            "crates/text/src/constraint/",
            "kernels/",
        ],
        needs: &[],
        run: grids::run,
    },
    Step {
        name: "kernels",
        paths: &[
            "crates/cuda-exec/kernels.ptx.z",
            "crates/cuda-exec/src/modules.rs",
            "kernels/",
            "lab/src/ptx*",
        ],
        needs: &[],
        run: || lab(&["ptx", "--check"]),
    },
    // Estimates the steps of `kernels/latency.list`: minutes of simulation.
    Step {
        name: "demands on launches",
        paths: &[
            "crates/cuda-exec/",
            "crates/ptx-sim/src/",
            "kernels/",
            "lab/src/kernel_estimate*",
        ],
        needs: &[],
        run: || lab(&["kernel-estimate", "--check"]),
    },
    // Its stated errors depend on the same files, and on those that make launches.
    Step {
        name: "published measurements of kernels",
        paths: &[
            "crates/cuda-exec/",
            "crates/ptx-sim/src/",
            "crates/sim-driver/src/",
            "kernels/",
            "lab/src/kernel_bench*",
            "lab/src/kernel_estimate*",
        ],
        needs: &[],
        run: || lab(&["kernel-estimate", "--published"]),
    },
    Step {
        name: "device pack",
        paths: &[
            "crates/cli/src/commands/",
            "crates/cuda-exec/",
            "crates/ptx-sim/src/",
            "crates/sim-driver/src/",
            "kernels/",
            "lab/",
        ],
        needs: &[],
        run: rehearse_device_pack,
    },
    Step {
        name: "web page",
        paths: &[
            "crates/server/src/endpoints/",
            "crates/server/web/",
            "tests/e2e/choosing.py",
            "tests/e2e/chromium.py",
            "tests/e2e/page*",
        ],
        needs: CHROMIUM,
        run: || end_to_end("page"),
    },
    Step {
        name: "gateways",
        paths: &["crates/server/src/", "tests/e2e/gateways*", "tests/e2e/run"],
        needs: &[PYTHON],
        run: || end_to_end("gateways"),
    },
    Step {
        name: "frameworks",
        paths: &[
            "crates/server/src/",
            "crates/text/src/calls/",
            "tests/e2e/ai_sdk/",
            "tests/e2e/frameworks*",
            "tests/e2e/lm_eval_task.py",
            "tests/e2e/run",
        ],
        needs: &[PYTHON],
        run: || end_to_end("frameworks"),
    },
    Step {
        name: "agents",
        paths: &[
            "crates/server/src/dialects/anthropic/",
            "crates/server/src/dialects/ollama/",
            "crates/server/src/dialects/openai/",
            "crates/server/src/requests/tools.rs",
            "crates/tokenmill/assets/",
            "tests/e2e/agents/",
            "tests/e2e/run",
            "tests/e2e/server.py",
        ],
        needs: &[PYTHON, Need::Program("npm", "npm")],
        run: || end_to_end("agents"),
    },
    // The suite comes from a source package on PyPI; without it the step reports that it was skipped.
    Step {
        name: "llama.cpp's server tests",
        paths: &[
            "crates/cli/src/commands/serve*",
            "crates/server/src/",
            "tests/e2e/llama_cpp/",
        ],
        needs: &[PYTHON],
        run: || script("tests/e2e/llama_cpp/run", &[]),
    },
    Step {
        name: "Python package",
        paths: &[
            "Cargo.lock",
            "bindings/python/",
            "crates/tokenmill/src/",
            "tests/e2e/python_*",
            "tests/e2e/run",
        ],
        needs: &[PYTHON],
        run: || end_to_end("python_package"),
    },
    Step {
        name: "packages",
        paths: &["Cargo.toml", "Cargo.lock", "*/Cargo.toml", "crates/*/README.md"],
        needs: &[],
        run: check_packages,
    },
    Step {
        name: "Windows",
        paths: OF_SYSTEMS,
        needs: windows::NEEDS,
        run: windows::run,
    },
    Step {
        name: "macOS",
        paths: OF_SYSTEMS,
        needs: &[Need::Target(MACOS), Need::Program("cc", "gcc")],
        run: check_macos,
    },
    Step {
        name: "ARM",
        paths: &[
            "Cargo.lock",
            "crates/cpu-exec/",
            "crates/cpu-kernels/",
            "crates/quant/",
            "xtask/src/ci/emulated.rs",
        ],
        needs: emulated::NEEDS,
        run: emulated::run,
    },
];

/// Only the library is checked there, since the server's TLS needs Apple's compiler.
const MACOS: &str = "aarch64-apple-darwin";

/// The time limit of a rehearsal of the device pack, in seconds. The rehearsal names the parts that do not
/// fit.
const REHEARSAL_S: &str = "120";

/// Packages that are never published.
const PRIVATE: [&str; 6] = [
    "lab",
    "tokenmill-python",
    "tokenmill-sim-driver",
    "tokenmill-testkit",
    "workspace-comparisons",
    "xtask",
];

/// Runs the tools that the tests were built with.
fn lab(args: &[&str]) -> anyhow::Result<()> {
    let programs = crate::lab::build(false)?;
    let status = Command::new(programs.join("lab"))
        .args(args)
        .current_dir(crate::workspace_root())
        .status()
        .context("cannot run lab")?;
    ensure!(status.success(), "lab {} failed", args.join(" "));
    Ok(())
}

/// Runs a part of the end-to-end tests with the program that the tests were built with.
fn end_to_end(part: &str) -> anyhow::Result<()> {
    script("tests/e2e/run", &[part])
}

/// Runs a script of the repository.
fn script(path: &str, args: &[&str]) -> anyhow::Result<()> {
    let status = Command::new(crate::workspace_root().join(path))
        .args(args)
        .env("CARGO_INCREMENTAL", "0")
        .status()
        .with_context(|| format!("cannot run {path}"))?;
    ensure!(status.success(), "{path} {} failed", args.join(" "));
    Ok(())
}

/// Makes a device pack of the programs that the tests were built with, and rehearses it.
fn rehearse_device_pack() -> anyhow::Result<()> {
    let programs = crate::target_dir().join("debug");
    let programs = programs.to_string_lossy();
    lab(&[
        "device-pack",
        "--data",
        "tests/data",
        "--out",
        "target/device-pack-ci",
        "--no-build",
        "--binaries",
        &programs,
        "--cubins",
        "none",
        "--predict",
        "h200",
        "--extent",
        "few",
        "--some-fixtures",
        "--rehearse",
        REHEARSAL_S,
        "--allow-late",
    ])
}

/// Packages every crate that can be published, as `cargo publish` would, and deletes the packages.
fn check_packages() -> anyhow::Result<()> {
    let folder = crate::target_dir().join("packages");
    let target_dir = folder.to_string_lossy().into_owned();
    let mut args = vec!["package", "--workspace", "--no-verify", "--allow-dirty"];
    args.extend(["--target-dir", &target_dir]);
    for private in PRIVATE {
        args.extend(["--exclude", private]);
    }
    let result = super::cargo(&args, None);
    // A folder that cannot be removed only costs space.
    let _ = fs::remove_dir_all(folder);
    result
}

/// Checks the library for macOS.
fn check_macos() -> anyhow::Result<()> {
    let args = ["check", "--locked", "--package", "tokenmill", "--target", MACOS];
    let result = super::cargo(&args, Some(("RUSTFLAGS", "-D warnings")));
    super::remove_build(MACOS);
    result
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// Returns the files that git lists for paths.
    fn listed(args: &[&str], paths: &[&str]) -> Vec<String> {
        let output = Command::new("git")
            .args(args)
            .arg("--")
            .args(paths)
            .current_dir(crate::workspace_root())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    fn has_git() -> bool {
        Path::new(crate::workspace_root()).join(".git").exists()
    }

    #[test]
    fn every_path_of_a_step_is_there() {
        if !has_git() {
            return;
        }
        for step in STEPS {
            for path in step.paths {
                assert!(
                    !listed(&["ls-files"], &[path]).is_empty(),
                    "{}: {path}",
                    step.name
                );
            }
        }
    }

    #[test]
    fn code_that_asks_for_the_system_is_among_the_paths_of_other_systems() {
        if !has_git() {
            return;
        }
        let asks = r"cfg\(.*(windows|unix|target_os)";
        let covered = listed(&["ls-files"], OF_SYSTEMS);
        for file in listed(&["grep", "-lE", asks], &["crates/*/src/*.rs"]) {
            assert!(
                covered.contains(&file),
                "{file} asks for the system: add it to OF_SYSTEMS"
            );
        }
    }
}
