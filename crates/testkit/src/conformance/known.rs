//! [`Known`]: a random network, its scene and the oracle's logits, made once for all subjects of a process.
//!
//! Several subjects are compared with the same logits, and making them takes longer than most subjects do. Invariant: everything that a
//! case depends on follows from its [`Case`].

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError},
};

use tokenmill_backend::KvType;
use tokenmill_gguf::TensorType;

use super::scene::{Scene, oracle_with};
use crate::TinyModel;

/// Identifies a case: its claim, and the parameters that differ between the claim's cases. Variants are identified by their names, which
/// are all different.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Case {
    /// The plain network in f32.
    Plain,
    /// A variant of it.
    Variant(&'static str),
    /// Several variants at once, by the number from which they are drawn.
    Random(usize),
    /// Weights of this type, and keys and values of these.
    Rounded(TensorType, [KvType; 2]),
    /// A variant with latent rows of this type.
    RoundedLatent(&'static str, KvType),
    /// A variant of experts.
    Experts(&'static str),
    /// Experts of this type.
    RoundedExperts(TensorType),
}

/// A case's network and its answer.
pub(super) struct Known {
    pub(super) model: TinyModel,
    pub(super) scene: Scene,
    pub(super) kv_types: [KvType; 2],
    /// The oracle's logits, a row for each token.
    pub(super) expected: Vec<Vec<f32>>,
}

type Slot = Arc<OnceLock<Arc<Known>>>;

static KNOWN: LazyLock<Mutex<HashMap<Case, Slot>>> = LazyLock::new(Mutex::default);

/// Returns a case, which is made if no subject had it yet. Other threads that need it wait meanwhile.
pub(super) fn known(case: Case, make: impl FnOnce() -> (TinyModel, Scene, [KvType; 2])) -> Arc<Known> {
    let slot = {
        let mut all = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(all.entry(case).or_default())
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
