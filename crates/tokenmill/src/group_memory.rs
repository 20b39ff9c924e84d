//! [`GroupMemory`] reads the memory limit of this process's control groups.
//!
//! Control groups are nested and have two versions; `machine_memory` reads the machine's memory. Invariant:
//! the smallest limit of the nested groups counts; without a limit, nothing is limited.
//!
//! Source: Linux, `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`; `proc(5)` for the two
//! files of the process.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Holds the limits of control groups, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_field_names, reason = "sizes end in their unit")]
pub(crate) struct GroupMemory {
    /// Limit of main memory.
    pub(crate) limit_bytes: Option<u64>,
    /// Main memory left below the limit. Cached files that can be dropped do not count as used.
    pub(crate) left_bytes: Option<u64>,
    /// Limit of swap.
    pub(crate) swap_limit_bytes: Option<u64>,
}

/// Names the files of one version of control groups.
struct Form {
    /// File system type in the list of mounts.
    fs_type: &'static str,
    limit: &'static str,
    held: &'static str,
    /// The field of `memory.stat` with the droppable cached files of the group and of the groups in it.
    dropped: &'static str,
    /// File with the limit of swap; version 1 limits only the sum of memory and swap.
    swap_limit: Option<&'static str>,
}

const FIRST: Form = Form {
    fs_type: "cgroup",
    limit: "memory.limit_in_bytes",
    held: "memory.usage_in_bytes",
    dropped: "total_inactive_file",
    swap_limit: None,
};

const SECOND: Form = Form {
    fs_type: "cgroup2",
    limit: "memory.max",
    held: "memory.current",
    dropped: "inactive_file",
    swap_limit: Some("memory.swap.max"),
};

impl GroupMemory {
    /// Reads the current limits of this process.
    pub(crate) fn of_this_process() -> Self {
        Self::under(Path::new("/"))
    }

    /// Does the same as [`Self::of_this_process`], with the system's files below a folder.
    fn under(root: &Path) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let (groups, mounts) = (read("proc/self/cgroup"), read("proc/self/mountinfo"));
        let mut found = Self::default();
        for (form, group) in groups.lines().filter_map(group_of) {
            for folder in folders(form, group, &mounts) {
                found.add(form, &root.join(folder));
            }
        }
        found
    }

    /// Applies the limits of a group.
    fn add(&mut self, form: &Form, folder: &Path) {
        let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
        // Version 2 writes `max` for no limit.
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let least = |known: Option<u64>, other: u64| Some(known.map_or(other, |known| known.min(other)));
        if let Some(limit) = number(form.limit) {
            self.limit_bytes = least(self.limit_bytes, limit);
            let stat = read("memory.stat").unwrap_or_default();
            let mut fields = stat.lines().filter_map(|line| line.split_once(' '));
            let dropped = fields.find(|(name, _)| *name == form.dropped);
            let dropped = dropped.and_then(|(_, value)| value.trim().parse::<u64>().ok());
            let held = number(form.held)
                .unwrap_or(0)
                .saturating_sub(dropped.unwrap_or(0));
            self.left_bytes = least(self.left_bytes, limit.saturating_sub(held));
        }
        if let Some(limit) = form.swap_limit.and_then(number) {
            self.swap_limit_bytes = least(self.swap_limit_bytes, limit);
        }
    }
}

/// Reads the version and the group from a line of `/proc/self/cgroup`; `None` if the line is not about memory.
fn group_of(line: &str) -> Option<(&'static Form, &str)> {
    let mut parts = line.splitn(3, ':');
    let (id, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
    if id == "0" && controllers.is_empty() {
        return Some((&SECOND, group));
    }
    let is_memory = controllers.split(',').any(|controller| controller == "memory");
    is_memory.then_some((&FIRST, group))
}

/// Lists the folders of a group and of its parents, without their leading slash, as far as they are mounted.
fn folders(form: &Form, group: &str, mounts: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for mount in mounts.lines().filter_map(|line| Mount::parse(line, form)) {
        // A container may see its own group as the whole tree.
        let below = Path::new(group)
            .strip_prefix(&mount.root)
            .unwrap_or(Path::new(""));
        let below = if below
            .components()
            .all(|part| matches!(part, std::path::Component::Normal(_)))
        {
            below
        } else {
            Path::new("")
        };
        folders.extend(below.ancestors().map(|part| mount.point.join(part)));
    }
    folders
}

/// Describes where a tree of control groups is mounted.
struct Mount {
    /// Group at the root of the mount.
    root: PathBuf,
    /// Path of the mount, without the leading slash.
    point: PathBuf,
}

impl Mount {
    /// Reads a line of `/proc/self/mountinfo`; `None` if it is another kind of mount.
    fn parse(line: &str, form: &Form) -> Option<Self> {
        let (about, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        if kind.next()? != form.fs_type {
            return None;
        }
        let is_memory =
            form.fs_type == SECOND.fs_type || kind.nth(1)?.split(',').any(|word| word == "memory");
        let mut fields = about.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        is_memory.then(|| Self {
            root: unescaped(root).into(),
            point: unescaped(point).trim_start_matches('/').into(),
        })
    }
}

/// Decodes the octal escapes of a path, such as `\040` for a space.
fn unescaped(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(path.to_owned(), |path, (code, sign)| path.replace(code, sign))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the limits of a system with these files.
    fn found(files: &[(&str, &str)]) -> GroupMemory {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        GroupMemory::under(root.path())
    }

    const SECOND_MOUNT: (&str, &str) = (
        "proc/self/mountinfo",
        "25 30 0:23 / /sys rw,nosuid - sysfs sysfs rw\n\
         35 25 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    );
    const FIRST_MOUNT: (&str, &str) = (
        "proc/self/mountinfo",
        "35 25 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
         36 25 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n",
    );

    #[test]
    fn the_smallest_of_nested_groups_counts() {
        let found = found(&[
            ("proc/self/cgroup", "0::/a.slice/b.scope\n"),
            SECOND_MOUNT,
            ("sys/fs/cgroup/a.slice/memory.max", "4000\n"),
            ("sys/fs/cgroup/a.slice/memory.current", "3500\n"),
            (
                "sys/fs/cgroup/a.slice/memory.stat",
                "anon 5\ninactive_file 100\nactive_file 7\n",
            ),
            ("sys/fs/cgroup/a.slice/memory.swap.max", "0\n"),
            ("sys/fs/cgroup/a.slice/b.scope/memory.max", "3000\n"),
            ("sys/fs/cgroup/a.slice/b.scope/memory.current", "1000\n"),
            ("sys/fs/cgroup/a.slice/b.scope/memory.swap.max", "max\n"),
        ]);
        let expected = GroupMemory {
            limit_bytes: Some(3000),
            left_bytes: Some(600),
            swap_limit_bytes: Some(0),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_group_without_a_limit_leaves_that_of_the_one_around_it() {
        let found = found(&[
            ("proc/self/cgroup", "0::/a/b\n"),
            SECOND_MOUNT,
            ("sys/fs/cgroup/a/memory.max", "4000\n"),
            ("sys/fs/cgroup/a/b/memory.max", "max\n"),
        ]);
        assert_eq!((found.limit_bytes, found.left_bytes), (Some(4000), Some(4000)));
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let found = found(&[
            ("proc/self/cgroup", "0::/\n"),
            SECOND_MOUNT,
            ("sys/fs/cgroup/memory.max", "5000\n"),
            ("sys/fs/cgroup/memory.current", "9000\n"),
        ]);
        assert_eq!((found.limit_bytes, found.left_bytes), (Some(5000), Some(0)));
    }

    #[test]
    fn the_first_form_is_read_too() {
        let files = [
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/box/job\n0::/\n"),
            FIRST_MOUNT,
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "2000\n"),
            ("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "900\n"),
            (
                "sys/fs/cgroup/memory/box/memory.stat",
                "inactive_file 1\ntotal_inactive_file 300\n",
            ),
            ("sys/fs/cgroup/memory/box/job/memory.limit_in_bytes", "7000\n"),
        ];
        let expected = GroupMemory {
            limit_bytes: Some(2000),
            left_bytes: Some(1400),
            swap_limit_bytes: None,
        };
        assert_eq!(found(&files), expected);
        // A container mounts only its own group.
        let mount = "36 25 0:31 /box /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let of_container = found(&[
            ("proc/self/cgroup", "4:memory:/box\n"),
            ("proc/self/mountinfo", mount),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "2500\n"),
        ]);
        assert_eq!(of_container.limit_bytes, Some(2500));
    }

    #[test]
    fn where_nothing_is_said_nothing_is_limited() {
        assert_eq!(found(&[]), GroupMemory::default());
        let escaping = found(&[
            ("proc/self/cgroup", "0::/../../x\n"),
            SECOND_MOUNT,
            ("x/memory.max", "1\n"),
        ]);
        assert_eq!(escaping, GroupMemory::default());
    }
}
