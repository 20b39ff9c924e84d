//! Disks without room: told before or while a file comes, with how much is missing; nothing is left that looks whole.
#![cfg(target_os = "linux")]

use std::{fs, path::Path, process::Command};

use tempfile::TempDir;
use tokenmill_hub::{HubError, HubSettings, PullWishes, ollama, pull, stored_models};

use crate::server::{FakeHub, NAME, noise};

/// A disk of its own, in memory.
struct SmallDisk {
    folder: TempDir,
}

impl SmallDisk {
    /// Mounts one; `None`, with a line that says so, where that is not allowed.
    fn mount(n_bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={n_bytes}"), "tmpfs"])
            .arg(folder.path())
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self { folder }),
            Ok(output) => {
                let reason = String::from_utf8_lossy(&output.stderr).into_owned();
                eprintln!("full disks: skipped, no disk can be mounted: {}", reason.trim());
                None
            }
            Err(error) => {
                eprintln!("full disks: skipped, no disk can be mounted: {error}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.folder.path()).status();
        assert!(
            unmounted.is_ok_and(|status| status.success()),
            "the disk stays mounted"
        );
    }
}

/// Bytes of the model; the disk has room for it, if nothing else is there.
const MODEL_BYTES: usize = 300_000;
const DISK_BYTES: u64 = 512 << 10;

fn settings(hub: &FakeHub, disk: &Path) -> HubSettings {
    let mut settings = hub.settings();
    settings.cache = disk.join("hub");
    settings.ollama_models = disk.join("ollama");
    settings.n_connections = 1;
    settings
}

#[track_caller]
fn check_no_space(error: &HubError) {
    let HubError::NoSpace {
        needed_bytes,
        free_bytes,
        ..
    } = error
    else {
        panic!("{error}")
    };
    assert!(
        free_bytes < needed_bytes && *needed_bytes <= MODEL_BYTES as u64 + (64 << 10),
        "{error}"
    );
}

/// Fills the disk when the second part of a file is asked for.
fn fill_midway(hub: &FakeHub, disk: &Path) {
    let filler = disk.join("filler");
    let mut n_requests = 0;
    hub.on(move |request| {
        let is_for_bytes = request.is_for_bytes();
        n_requests += usize::from(is_for_bytes);
        if is_for_bytes && n_requests == 2 {
            // As much of it as there is room for.
            let _cut = fs::write(&filler, vec![1; DISK_BYTES as usize]);
        }
        None
    });
}

#[test]
fn a_disk_that_is_too_small_is_told_before_anything_is_downloaded() {
    let Some(disk) = SmallDisk::mount(DISK_BYTES / 2) else {
        return;
    };
    let of_hub = FakeHub::with(&[("m-Q4_K_M.gguf", noise(MODEL_BYTES, 3))]);
    let settings_of_hub = settings(&of_hub, disk.path());
    let name = NAME.parse().unwrap();
    check_no_space(&pull(&name, &PullWishes::default(), &settings_of_hub, &()).unwrap_err());
    assert_eq!(stored_models(&settings_of_hub).unwrap(), []);
    let of_ollama = FakeHub::with(&[("weights.model", noise(MODEL_BYTES, 4))]);
    let settings_of_ollama = settings(&of_ollama, disk.path());
    let plan = ollama::plan(&"model:tiny".parse().unwrap(), &settings_of_ollama, &()).unwrap();
    check_no_space(&plan.fetch(&settings_of_ollama, &()).unwrap_err());
    for hub in [of_hub, of_ollama] {
        assert!(!hub.requests().iter().any(super::server::Request::is_for_bytes));
    }
}

#[test]
fn a_disk_that_fills_up_midway_is_told_with_what_is_missing() {
    let Some(disk) = SmallDisk::mount(DISK_BYTES) else {
        return;
    };
    let bytes = noise(MODEL_BYTES, 3);
    let hub = FakeHub::with(&[("m-Q4_K_M.gguf", bytes.clone())]);
    let settings = settings(&hub, disk.path());
    let pull = || pull(&NAME.parse().unwrap(), &PullWishes::default(), &settings, &());
    fill_midway(&hub, disk.path());
    check_no_space(&pull().unwrap_err());
    assert_eq!(stored_models(&settings).unwrap(), []);
    assert!(!settings.cache.join("models--org--model-GGUF/snapshots").exists());
    // While it is full, it is told at once.
    check_no_space(&pull().unwrap_err());
    fs::remove_file(disk.path().join("filler")).unwrap();
    assert_eq!(fs::read(pull().unwrap().path).unwrap(), bytes);
}

#[test]
fn a_disk_that_fills_up_under_a_model_of_ollama_is_told() {
    let Some(disk) = SmallDisk::mount(DISK_BYTES) else {
        return;
    };
    let bytes = noise(MODEL_BYTES, 5);
    let hub = FakeHub::with(&[("weights.model", bytes.clone())]);
    let settings = settings(&hub, disk.path());
    let name = "model:tiny".parse().unwrap();
    let pull = || ollama::plan(&name, &settings, &())?.fetch(&settings, &());
    fill_midway(&hub, disk.path());
    check_no_space(&pull().unwrap_err());
    assert!(ollama::stored_models(&settings).is_empty());
    fs::remove_file(disk.path().join("filler")).unwrap();
    assert_eq!(fs::read(pull().unwrap().path).unwrap(), bytes);
}
