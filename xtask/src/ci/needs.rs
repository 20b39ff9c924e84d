//! [`Need`]: the tools that a step needs besides Rust, whether they exist, and how to get them.
//!
//! A clean CI machine has none of them, and a developer's machine has what its owner wants: nothing is installed without a
//! request. Invariant: a step never starts without the tools that it needs.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::Context;

/// A tool that a step needs.
pub(super) enum Need {
    /// The standard library of a target.
    Target(&'static str),
    /// A program on the path, and the Debian package that has it.
    Program(&'static str, &'static str),
    /// A file or folder, and the Debian package that has it.
    File(&'static str, &'static str),
}

impl Need {
    fn is_there(&self) -> anyhow::Result<bool> {
        Ok(match self {
            Self::Target(target) => has_target(target)?,
            Self::Program(program, _) => {
                let path = env::var_os("PATH").unwrap_or_default();
                env::split_paths(&path).any(|folder| folder.join(program).is_file())
            }
            Self::File(path, _) => Path::new(path).exists(),
        })
    }
}

/// Describes what is missing, and how to get it.
///
/// # Errors
/// If rustc cannot be run.
pub(super) fn missing(needs: &[Need]) -> anyhow::Result<Option<String>> {
    for need in needs {
        if need.is_there()? {
            continue;
        }
        return Ok(Some(match need {
            Need::Target(target) => format!("`rustup target add {target}` was not run here"),
            Need::Program(name, package) | Need::File(name, package) => {
                format!("there is no {name} here; on Debian `apt-get install {package}`")
            }
        }));
    }
    Ok(None)
}

/// Installs what is missing: targets by rustup, packages by apt-get. A failure is reported, and the step that needs the tool is
/// then skipped.
///
/// # Errors
/// If rustc cannot be run.
pub(super) fn install(needs: &[&Need]) -> anyhow::Result<()> {
    let (mut targets, mut packages) = (Vec::new(), Vec::new());
    for need in needs {
        let (list, name) = match need {
            Need::Target(target) => (&mut targets, *target),
            Need::Program(_, package) | Need::File(_, package) => (&mut packages, *package),
        };
        if !list.contains(&name) && !need.is_there()? {
            list.push(name);
        }
    }
    if !targets.is_empty() {
        run("rustup", &["target", "add"], &targets);
    }
    if !packages.is_empty() {
        run("apt-get", &["update", "-qq"], &[]);
        run(
            "apt-get",
            &["install", "-y", "-qq", "--no-install-recommends"],
            &packages,
        );
    }
    Ok(())
}

/// Runs an installer, and prints its output only if it fails.
fn run(program: &str, args: &[&str], names: &[&str]) {
    println!("{program} {} {}", args.join(" "), names.join(" "));
    let output = Command::new(program)
        .args(args)
        .args(names)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) => println!("failed: {}", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => println!("cannot be run: {error}"),
    }
}

/// Returns whether the cargo that builds has the standard library of a target.
fn has_target(target: &str) -> anyhow::Result<bool> {
    let rustc = Path::new(env!("CARGO")).with_file_name(format!("rustc{}", env::consts::EXE_SUFFIX));
    let output = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", target])
        .output()
        .context("cannot run rustc")?;
    Ok(Path::new(String::from_utf8_lossy(&output.stdout).trim()).is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_a_way_to_get_it() {
        let said = missing(&[Need::Program("cargo", "cargo"), Need::File("/no/such", "such")]);
        let said = said.unwrap().unwrap();
        assert!(
            said.contains("no /no/such here") && said.contains("apt-get install such"),
            "{said}"
        );
        let said = missing(&[Need::Target("no-such-target")]).unwrap().unwrap();
        assert!(said.contains("rustup target add no-such-target"), "{said}");
        assert_eq!(missing(&[]).unwrap(), None);
    }
}
