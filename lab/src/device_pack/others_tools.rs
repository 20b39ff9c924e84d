//! Stand-ins for other programs in a rehearsal: `llama-bench`, `ncu`, `compute-sanitizer`, `nvidia-smi` and a python's torch.
//!
//! A rehearsal runs the pack's own programs as they are. A missing tool cannot reject an unknown argument, so each stand-in knows the options of
//! its tool and refuses others; it runs the command that its tool would run. Invariant: a stand-in is found before an installed tool, so a
//! rehearsal is the same on every machine.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use anyhow::Context;

use super::make_executable;

/// The script for each of [`TOOLS`], which its name selects.
const TOOL: &str = include_str!("stand_ins/tool.sh");
const TOOLS: [&str; 4] = ["llama-bench", "ncu", "compute-sanitizer", "nvidia-smi"];
/// The Python module of the name `torch`.
const TORCH: &str = include_str!("stand_ins/torch.py");

/// Variables with which a script finds the stand-ins.
pub(super) struct Stands {
    pub(super) path: OsString,
    pub(super) python_path: PathBuf,
}

/// Writes them below a folder.
///
/// # Errors
/// A file that cannot be written.
pub(super) fn write(folder: &Path) -> anyhow::Result<Stands> {
    let [tools, modules] = ["tools", "python"].map(|name| folder.join(name));
    for folder in [&tools, &modules] {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    for tool in TOOLS {
        let path = tools.join(tool);
        fs::write(&path, TOOL).with_context(|| format!("cannot write {}", path.display()))?;
        make_executable(&path)?;
    }
    fs::write(modules.join("torch.py"), TORCH).context("cannot write a stand-in for torch")?;
    let usual = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(tools).chain(std::env::split_paths(&usual));
    Ok(Stands {
        path: std::env::join_paths(folders).context("PATH cannot have another folder")?,
        python_path: modules,
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::process::Command;

    use super::*;

    /// Returns the line with which a stand-in refuses arguments, or `taken`.
    fn said(arguments: &[&str]) -> String {
        let folder = tempfile::tempdir().unwrap();
        let stands = write(folder.path()).unwrap();
        let output = Command::new("env")
            .args(arguments)
            .env("PATH", &stands.path)
            .env("TOKENMILL_CUDA_APART", "1")
            .output()
            .unwrap();
        if output.status.success() {
            return "taken".to_owned();
        }
        String::from_utf8(output.stderr).unwrap().trim().to_owned()
    }

    #[test]
    fn options_that_a_tool_does_not_have_are_refused() {
        assert_eq!(
            said(&["compute-sanitizer", "--tool", "racecheck", "true"]),
            "taken"
        );
        assert_eq!(
            said(&["compute-sanitizer", "--tool", "racechek", "true"]),
            "error: compute-sanitizer: --tool takes one of memcheck racecheck initcheck synccheck, not 'racechek'"
        );
        assert_eq!(said(&["ncu", "--csv", "--launch-count", "12", "true"]), "taken");
        assert_eq!(
            said(&["ncu", "--launches", "12", "true"]),
            "error: ncu: unknown argument '--launches'"
        );
        assert_eq!(
            said(&["ncu", "--csv", "false"]),
            "error: ncu: the program ended with 1"
        );
        assert_eq!(
            said(&["llama-bench", "-m", "none.gguf"]),
            "error: llama-bench: no model 'none.gguf'"
        );
    }
}
