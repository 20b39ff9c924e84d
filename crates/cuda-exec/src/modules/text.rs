//! [`Text`]: a module's PTX as a driver gets it.
//!
//! Separate from the archive, whose texts are for all GPUs. Invariant: a text depends on the module and on whether its launches may begin
//! early, so what was unpacked once is right for every device.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use super::{Entry, early_variant, waiting_kernels};

/// A module's PTX for some GPUs.
#[derive(Debug)]
pub(crate) struct Text {
    pub(crate) ptx: String,
    /// Kernels that wait for the launches before them.
    pub(crate) waiting: BTreeSet<String>,
}

type Kept = Mutex<HashMap<(&'static str, bool), Arc<Text>>>;

static KEPT: OnceLock<Kept> = OnceLock::new();

/// Keeps each text that is unpacked from now on, at most 130 MB. A process that opens many devices, as tests do, otherwise unpacks the same
/// texts for each.
pub fn keep_texts() {
    KEPT.get_or_init(Mutex::default);
}

/// Unpacks the PTX of a module, for GPUs whose launches begin early or for all others.
pub(crate) fn text(entry: &Entry<'static>, is_early: bool) -> Arc<Text> {
    let kept = KEPT
        .get()
        .map(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner));
    let known = kept
        .as_ref()
        .and_then(|kept| kept.get(&(entry.name, is_early)).map(Arc::clone));
    drop(kept);
    if let Some(known) = known {
        return known;
    }
    let ptx = entry.ptx().expect("the archive is as `cargo lab ptx` wrote it");
    let early = if is_early { early_variant(&ptx) } else { None };
    let text = Arc::new(Text {
        waiting: early.as_deref().map(waiting_kernels).unwrap_or_default(),
        ptx: early.unwrap_or(ptx),
    });
    if let Some(kept) = KEPT.get() {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.insert((entry.name, is_early), Arc::clone(&text));
    }
    text
}
