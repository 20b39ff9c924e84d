//! The way to a machine that is lent for one command and back: sizes, the copy, the command, and the files.
//!
//! Such a machine gets the files of the work tree with named folders, runs one command there, and returns a few files. Invariants: an oversized
//! pack is refused here, before a machine is requested; a rehearsal runs over the same files, at the same paths, by the same command.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, ensure};

use super::size_of;
use crate::measure::record;

/// Largest number of bytes that such a machine takes.
const TAKEN_BYTES: u64 = 64 << 20;
/// Largest number of files that it returns, with the bytes of one and of all, and the depth of folders.
const MOST_FILES: usize = 8;
const MOST_FILE_BYTES: u64 = 16 << 20;
const MOST_BACK_BYTES: u64 = 64 << 20;
const MOST_FOLDERS: usize = 2;
/// The folder that stays of the work tree: the pack needs none of it, and git keeps the files of the root.
const KEPT: &str = "docs";
/// The two calls: the seconds requested from a machine, and the script's own limit, which leaves time to write the last files.
pub(super) const CALLS: [(u8, u64); 2] = [(1, 280), (2, 300)];
const SPARE_S: u64 = 10;

/// Returns git's output without surrounding space; `None` if git fails.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).current_dir(root).output().ok()?;
    (output.status.success()).then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Counts the bytes that travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pack: u64,
    /// Files of the whole work tree.
    tree: u64,
    /// Files of the sparse work tree.
    sparse: u64,
}

impl Load {
    /// Adds up the pack and the work tree; `None` without git.
    ///
    /// # Errors
    /// A pack that cannot be read.
    pub(super) fn of(root: &Path, pack: &Path) -> anyhow::Result<Option<Self>> {
        let Some(files) = tree_files(root) else {
            return Ok(None);
        };
        let kept = files.iter().filter(|file| file.is_kept());
        Ok(Some(Self {
            pack: size_of(pack)?,
            tree: files.iter().map(|file| file.n_bytes).sum(),
            sparse: kept.map(|file| file.n_bytes).sum(),
        }))
    }

    /// Describes the size, and how it can be made to fit.
    ///
    /// # Errors
    /// A pack that does not fit without most of the work tree either.
    pub(super) fn told(self) -> anyhow::Result<String> {
        let mib = |n_bytes: u64| format!("{:.1} MiB", n_bytes as f64 / f64::from(1 << 20));
        let limit = TAKEN_BYTES >> 20;
        let (all, sparse) = (self.pack + self.tree, self.pack + self.sparse);
        ensure!(
            sparse <= TAKEN_BYTES,
            "the pack and what is left of the work tree are {}: more than the {limit} MiB of a machine that takes them; build it of release binaries",
            mib(sparse)
        );
        if all <= TAKEN_BYTES {
            return Ok(format!(
                "{} with the files of the work tree, of {limit} MiB",
                mib(all)
            ));
        }
        Ok(format!(
            "{} with the files of the work tree, which is more than {limit} MiB; {} after `git sparse-checkout set {KEPT}` \
             (`git sparse-checkout disable` brings them back)",
            mib(all),
            mib(sparse)
        ))
    }
}

/// A file of the work tree that git does not ignore.
struct TreeFile {
    name: String,
    n_bytes: u64,
    is_tracked: bool,
}

impl TreeFile {
    /// Returns whether a sparse work tree has it: files of the root and of the kept folder, and untracked files.
    fn is_kept(&self) -> bool {
        let is_in_kept = self
            .name
            .strip_prefix(KEPT)
            .is_some_and(|rest| rest.starts_with('/'));
        !self.is_tracked || !self.name.contains('/') || is_in_kept
    }
}

/// Lists the existing files of the work tree; `None` without git.
fn tree_files(root: &Path) -> Option<Vec<TreeFile>> {
    let mut files = Vec::new();
    for (is_tracked, kind) in [
        (true, &["ls-files", "-z", "--cached"][..]),
        (false, &["ls-files", "-z", "--others", "--exclude-standard"][..]),
    ] {
        let listed = git(root, kind)?;
        for name in listed.split('\0').filter(|name| !name.is_empty()) {
            // A sparse work tree lacks some. Links travel as links.
            if let Ok(file) = fs::symlink_metadata(root.join(name)) {
                files.push(TreeFile {
                    name: name.to_owned(),
                    n_bytes: file.len(),
                    is_tracked,
                });
            }
        }
    }
    Some(files)
}

/// Copies the travelling files into a folder, in the machine's layout; returns the pack's path there.
///
/// # Errors
/// A file that cannot be copied.
pub(super) fn send(root: &Path, pack: &Path, machine: &Path) -> anyhow::Result<PathBuf> {
    let copy = |from: &Path, to: &Path| -> anyhow::Result<()> {
        let folder = to.parent().context("a file is in a folder")?;
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
        Ok(())
    };
    for file in tree_files(root).into_iter().flatten().filter(TreeFile::is_kept) {
        let from = root.join(&file.name);
        if from.is_file() {
            copy(&from, &machine.join(&file.name))?;
        }
    }
    let there = machine.join(carried(root, pack));
    for file in record::files_below(pack)? {
        copy(&file, &there.join(file.strip_prefix(pack)?))?;
    }
    Ok(there)
}

/// Returns the pack's path in the work tree, by which the machine knows it; its last part if it is elsewhere.
pub(super) fn carried<'a>(root: &Path, pack: &'a Path) -> &'a Path {
    (pack.strip_prefix(root).ok())
        .or_else(|| pack.file_name().map(Path::new))
        .unwrap_or(pack)
}

/// Returns the command of a call in the root of the work tree, with the script's own limit within the `seconds` of the call.
pub(super) fn command(carried: &Path, call: u8, seconds: u64) -> String {
    let seconds = seconds.saturating_sub(SPARE_S.min(seconds / 4));
    format!(
        "CALL={call} WORK_FOLDER=${{WORK_FOLDER:-/tmp}} {}/run.sh \"$OUT\" {seconds}",
        carried.display()
    )
}

/// Describes how the pack is run, line by line.
pub(super) fn how_to_run(carried: &Path) -> String {
    CALLS.iter().fold(
        format!(
            "where a machine is lent for a command, carry {} and run\n",
            carried.display()
        ),
        |text, &(call, seconds)| {
            format!(
                "{text}  within {seconds} s: {}\n",
                command(carried, call, seconds)
            )
        },
    )
}

/// Checks that the files of a folder come back, and returns their number and bytes.
///
/// # Errors
/// Too many files, too large ones, or names that do not come back.
pub(super) fn come_back(out: &Path) -> anyhow::Result<(usize, u64)> {
    let (mut n_files, mut n_bytes) = (0, 0);
    let mut folders = vec![(out.to_owned(), 0)];
    while let Some((folder, depth)) = folders.pop() {
        let listed = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
        for entry in listed {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let name = entry.file_name();
            let is_plain = name.to_str().is_some_and(|name| {
                name.bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
            });
            ensure!(is_plain, "{} has a name that does not come back", path.display());
            if kind.is_dir() {
                ensure!(
                    depth < MOST_FOLDERS,
                    "{} is too many folders down",
                    path.display()
                );
                folders.push((path, depth + 1));
                continue;
            }
            ensure!(kind.is_file(), "{} is no plain file", path.display());
            let len = entry.metadata()?.len();
            ensure!(
                len <= MOST_FILE_BYTES,
                "{} has {len} bytes, and {MOST_FILE_BYTES} come back",
                path.display()
            );
            n_files += 1;
            n_bytes += len;
        }
    }
    ensure!(
        n_files <= MOST_FILES,
        "the results are {n_files} files, and {MOST_FILES} come back"
    );
    ensure!(
        n_bytes <= MOST_BACK_BYTES,
        "the results have {n_bytes} bytes, and {MOST_BACK_BYTES} come back"
    );
    Ok((n_files, n_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_without_the_tree_is_refused() {
        let load = |pack, tree, sparse| Load { pack, tree, sparse };
        let told = load(20 << 20, 20 << 20, 1 << 20).told().unwrap();
        assert_eq!(told, "40.0 MiB with the files of the work tree, of 64 MiB");
        let told = load(50 << 20, 20 << 20, 1 << 20).told().unwrap();
        assert!(told.contains("git sparse-checkout set docs"), "{told}");
        let refused = load(63 << 20, 20 << 20, (1 << 20) + 1)
            .told()
            .unwrap_err()
            .to_string();
        assert!(refused.contains("more than the 64 MiB"), "{refused}");
    }

    #[test]
    fn the_tree_is_what_git_does_not_ignore_and_a_sparse_one_has_the_root_and_one_folder() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert!(Load::of(root, root).unwrap().is_none());
        git(root, &["init", "--quiet"]).unwrap();
        for folder in ["docs", "crates", "pack"] {
            fs::create_dir(root.join(folder)).unwrap();
        }
        for (name, len) in [
            (".gitignore", 5),
            ("docs/page", 3),
            ("crates/code", 100),
            ("new", 7),
            ("pack/run.sh", 1000),
        ] {
            fs::write(root.join(name), vec![b'a'; len]).unwrap();
        }
        fs::write(root.join(".gitignore"), "/pack").unwrap();
        git(root, &["add", ".gitignore", "docs", "crates"]).unwrap();
        let load = Load::of(root, &root.join("pack")).unwrap().unwrap();
        let expected = Load {
            pack: 1000,
            tree: 5 + 3 + 100 + 7,
            sparse: 5 + 3 + 7,
        };
        assert_eq!(load, expected);
        // It is at the same path as here.
        let machine = tempfile::tempdir().unwrap();
        let there = send(root, &root.join("pack"), machine.path()).unwrap();
        assert_eq!(there, machine.path().join("pack"));
        assert!(there.join("run.sh").is_file() && machine.path().join("docs/page").is_file());
        assert!(!machine.path().join("crates").exists());
    }

    #[test]
    fn files_that_do_not_come_back_are_errors() {
        let out = tempfile::tempdir().unwrap();
        let out = out.path();
        for index in 0..MOST_FILES {
            fs::write(out.join(format!("file-{index}.json")), "{}").unwrap();
        }
        assert_eq!(come_back(out).unwrap(), (8, 16));
        fs::write(out.join("one-more"), "").unwrap();
        assert!(come_back(out).unwrap_err().to_string().contains("9 files"));
        fs::rename(out.join("one-more"), out.join("file-0.json")).unwrap();
        fs::rename(out.join("file-1.json"), out.join("a name")).unwrap();
        assert!(come_back(out).unwrap_err().to_string().contains("name"));
        fs::remove_file(out.join("a name")).unwrap();
        fs::create_dir_all(out.join("a/b/c")).unwrap();
        assert!(come_back(out).unwrap_err().to_string().contains("folders down"));
    }

    #[test]
    fn the_script_ends_before_its_call_does() {
        let command = command(Path::new("target/pack"), 2, 300);
        assert_eq!(
            command,
            "CALL=2 WORK_FOLDER=${WORK_FOLDER:-/tmp} target/pack/run.sh \"$OUT\" 290"
        );
    }
}
