//! [`ModuleText`]: a module's PTX in the form for a driver; and [`ModuleTexts`]: texts that several devices share.
//!
//! The archive's texts are for all GPUs. Invariant: a text depends only on the module and on whether its launches may begin early, so the
//! unpacked text of one device is right for every other.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use super::{Entry, early_variant, waiting_kernels};

/// A module's PTX for some GPUs.
#[derive(Debug)]
pub(crate) struct ModuleText {
    pub(crate) ptx: String,
    /// Kernels that wait for earlier launches.
    pub(crate) waiting: BTreeSet<String>,
}

impl ModuleText {
    /// Unpacks the PTX of a module, for GPUs whose launches begin early or for all others.
    pub(crate) fn unpack(entry: &Entry<'static>, is_early: bool) -> Self {
        let ptx = entry.ptx().expect("the archive is as `cargo lab ptx` wrote it");
        let early = if is_early { early_variant(&ptx) } else { None };
        Self {
            waiting: early.as_deref().map(waiting_kernels).unwrap_or_default(),
            ptx: early.unwrap_or(ptx),
        }
    }
}

/// Texts that devices of one process share, at most 130 MB. Clones are handles of the same texts.
///
/// A process that opens many devices, as tests do, otherwise unpacks the same texts for each
/// ([`DeviceOptions::texts`](crate::DeviceOptions::texts)).
#[derive(Clone, Default)]
pub struct ModuleTexts(Arc<Mutex<Texts>>);

type Texts = HashMap<(&'static str, bool), Arc<ModuleText>>;

impl fmt::Debug for ModuleTexts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModuleTexts").finish_non_exhaustive()
    }
}

impl ModuleTexts {
    /// Returns the text of a module, which is unpacked the first time. No lock is held meanwhile: two devices that ask at once both unpack
    /// it.
    pub(crate) fn text(&self, entry: &Entry<'static>, is_early: bool) -> Arc<ModuleText> {
        let key = (entry.name, is_early);
        let texts = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = texts().get(&key).map(Arc::clone);
        known.unwrap_or_else(|| {
            let text = Arc::new(ModuleText::unpack(entry, is_early));
            texts().insert(key, Arc::clone(&text));
            text
        })
    }
}
