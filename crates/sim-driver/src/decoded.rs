//! [`load`]: reuses modules that this process decoded before.
//!
//! Contexts come and go, one for each simulated device of a test, and decoding would take most of the time of a short
//! test. Invariant: kept modules have no global variables, so they are the same on every device.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex, PoisonError},
};

use tokenmill_ptx_sim::{DeviceMemory, LoadError, Module};

/// Limit of the total text of kept modules, in bytes. Decoded, a module takes several times its text.
const KEPT_TEXT_BYTES: usize = 64 << 20;

#[derive(Default)]
struct Decoded {
    /// By hash and length of their texts.
    modules: HashMap<(u64, usize), Module>,
    text_bytes: usize,
}

static DECODED: LazyLock<Mutex<Decoded>> = LazyLock::new(Mutex::default);

/// Does the same as [`Module::load`] for a text with this hash.
pub(crate) fn load(ptx: &str, hash: u64, memory: &mut DeviceMemory) -> Result<Module, LoadError> {
    let kept = || DECODED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(module) = kept().modules.get(&(hash, ptx.len())).and_then(Module::share) {
        return Ok(module);
    }
    let module = Module::load(ptx, memory)?;
    let mut decoded = kept();
    if let Some(shared) = module.share()
        && decoded.text_bytes + ptx.len() <= KEPT_TEXT_BYTES
        && decoded.modules.insert((hash, ptx.len()), shared).is_none()
    {
        decoded.text_bytes += ptx.len();
    }
    Ok(module)
}
