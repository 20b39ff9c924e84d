//! The CUDA compiler as pinned Python wheels.
//!
//! Only this file knows how the wheels are fetched and laid out. Invariant: a folder with the marker file is complete, since
//! the marker is written last.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

/// Exact versions: another compiler writes other bytes, and a later one PTX that older drivers refuse.
const WHEELS: [&str; 5] = [
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-cuda-runtime==13.0.96",
    "nvidia-cuda-cccl==13.0.85",
];
const MARKER: &str = "complete-13.0.88";

/// An unpacked compiler.
pub(super) struct Toolchain {
    root: PathBuf,
}

impl Toolchain {
    /// Fetches the wheels into `folder` unless they exist.
    ///
    /// # Errors
    /// No Python with pip, no network, or no host compiler.
    pub(super) fn fetch(folder: &Path) -> anyhow::Result<Self> {
        let has_host_compiler = Command::new("gcc").arg("--version").output().is_ok();
        ensure!(has_host_compiler, "nvcc needs gcc to preprocess; install it");
        let toolchain = Self {
            root: folder.join("nvidia/cu13"),
        };
        if folder.join(MARKER).exists() {
            return Ok(toolchain);
        }
        if folder.exists() {
            fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
        }
        println!(
            "ptx: fetching the CUDA compiler (about 100 MB) into {}",
            folder.display()
        );
        // All wheels in one call: a second install into the same folder would silently not be merged.
        install(folder, &WHEELS)?;
        for unused in ["lib", "bin/nvlink", "include/cccl/thrust", "include/cccl/cub"] {
            let path = toolchain.root.join(unused);
            // Absent parts need no removal.
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
        fs::write(folder.join(MARKER), "").context("cannot write the marker")?;
        Ok(toolchain)
    }

    pub(super) fn nvcc(&self) -> PathBuf {
        self.root.join("bin/nvcc")
    }

    pub(super) fn ptxas(&self) -> PathBuf {
        self.root.join("bin/ptxas")
    }
}

/// Exact version, because another one formats differently. The disassembler has no release of the compiler's version.
const DISASSEMBLER: &str = "nvidia-cuda-nvdisasm==13.2.86";

/// Holds an unpacked disassembler.
pub(super) struct Disassembler {
    program: PathBuf,
}

impl Disassembler {
    /// Fetches the wheel into `folder` unless it exists.
    ///
    /// # Errors
    /// Fails without Python and pip, or without network.
    pub(super) fn fetch(folder: &Path) -> anyhow::Result<Self> {
        let program = folder.join("nvidia/cu13/bin/nvdisasm");
        if !program.exists() {
            install(folder, &[DISASSEMBLER])?;
        }
        Ok(Self { program })
    }

    /// Disassembles a file of machine code.
    ///
    /// # Errors
    /// Returns the tool's message.
    pub(super) fn run(&self, file: &Path) -> anyhow::Result<String> {
        let output = Command::new(&self.program).arg("-c").arg(file).output();
        let output = output.with_context(|| format!("cannot run {}", self.program.display()))?;
        ensure!(
            output.status.success(),
            "{}: {}",
            file.display(),
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Installs wheels into a separate folder.
fn install(folder: &Path, wheels: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("python3")
        .args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--no-compile",
            "--target",
        ])
        .arg(folder)
        .args(wheels)
        .output()
        .context("cannot run python3")?;
    ensure!(
        output.status.success(),
        "pip failed: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}
