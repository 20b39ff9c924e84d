//! [`Known`]: a random network, its scene and the oracle's logits, made once for all subjects of a process.
//!
//! Separate because several subjects are held to the same logits, and making them takes longer than most subjects do. Invariant: a case
//! is known by its claim and its name, and whatever else it depends on follows from these.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError},
};

use tokenmill_backend::KvType;

use super::scene::{Scene, oracle_with};
use crate::TinyModel;

/// A case and its answer.
pub(super) struct Known {
    pub(super) model: TinyModel,
    pub(super) scene: Scene,
    pub(super) kv_types: [KvType; 2],
    /// The oracle's logits, a row for each token.
    pub(super) expected: Vec<Vec<f32>>,
}

type Slot = Arc<OnceLock<Arc<Known>>>;

static KNOWN: LazyLock<Mutex<HashMap<String, Slot>>> = LazyLock::new(Mutex::default);

/// Gives a case of a claim, which is made where no subject had it yet. Whoever wants it meanwhile waits.
pub(super) fn known(
    claim: &str,
    name: &str,
    make: impl FnOnce() -> (TinyModel, Scene, [KvType; 2]),
) -> Arc<Known> {
    let slot = {
        let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(format!("{claim}: {name}")).or_default())
    };
    let known = slot.get_or_init(|| {
        let (model, scene, kv_types) = make();
        let expected = scene.play(&mut oracle_with(&model, kv_types));
        Arc::new(Known {
            model,
            scene,
            kv_types,
            expected,
        })
    });
    Arc::clone(known)
}

impl Known {
    /// Plays the scene on a subject.
    pub(super) fn on(&self, subject: &super::Subject) -> Vec<Vec<f32>> {
        self.scene
            .play(&mut super::on_with(subject, 2, &self.model, self.kv_types))
    }
}
