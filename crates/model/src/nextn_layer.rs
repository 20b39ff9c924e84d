//! [`Nextn`]: the MTP layer after a network's last layer, from its file to an executor.
//!
//! Invariant: it is loaded under the names of a network with one layer, so the code that loads and runs
//! layers knows only about its different input.

use std::borrow::Cow;

use tokenmill_backend::{MemoryPlan, Weigh, program::ProgramDevice};
use tokenmill_gguf::GgufFile;

use crate::{
    Descriptor, FolderAsGguf, LoadError, LoadProgress, Model, ModelExecutor, ModelOptions, WeightInfo,
    WeightSource, WeightTensor, arch, gguf_header::GgufHeader, hf_config::HfConfig, model::build_sharing,
    nextn::SharedWeights, plan::plan_sharing,
};

/// The first MTP layer of a model; it drafts from the model's own hidden states.
pub struct Nextn<'a> {
    descriptor: Descriptor,
    source: NextnSource<'a>,
}

impl<'a> Nextn<'a> {
    /// Creates the layer `layer_idx` of a file; it is the only layer of `descriptor`.
    pub(crate) fn new(mut descriptor: Descriptor, weights: NextnWeights<'a>, layer_idx: usize) -> Self {
        descriptor.reads_hidden = true;
        descriptor.pooling = None;
        descriptor.control = Vec::new();
        Self {
            descriptor,
            source: NextnSource { weights, layer_idx },
        }
    }

    /// Returns the layer's descriptor, as a network.
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// Returns its weights, under the names of a network with one layer.
    pub fn weights(&self) -> &dyn WeightSource {
        &self.source
    }

    /// Returns the memory that loading it on `backend` will take, in addition to the network with which it
    /// shares embedding and head.
    ///
    /// # Errors
    /// [`LoadError`], if its weights or the options are invalid.
    pub fn plan(&self, backend: &dyn Weigh, options: &ModelOptions) -> Result<MemoryPlan, LoadError> {
        plan_sharing(
            &self.descriptor,
            &self.source,
            backend,
            options,
            self.source.shared(),
        )
    }

    /// Loads it on its own device, of the type of the network's, next to the loaded network whose embedding and head it
    /// uses.
    ///
    /// # Errors
    /// [`LoadError`]: a tensor that is missing, has a wrong shape or an unsupported type, or a backend's error.
    pub fn load_on(
        &self,
        device: impl Into<Box<dyn ProgramDevice>>,
        options: &ModelOptions,
        network: &ModelExecutor,
        on_progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<ModelExecutor, LoadError> {
        let shared = self.source.shared().map(|shared| (shared, network));
        build_sharing(
            &self.descriptor,
            &self.source,
            device.into(),
            options,
            shared,
            on_progress,
        )
    }
}

impl Model {
    /// Returns the model's first MTP layer, if it has one. In a folder, the layer is read in GGUF form.
    ///
    /// # Errors
    /// Errors in the layer that the headers reveal.
    pub fn nextn(&self) -> Result<Option<Nextn<'_>>, LoadError> {
        let (found, weights) = if let Some(file) = self.gguf() {
            let found = arch::describe_nextn(GgufHeader::of_file(file)?)?;
            (found, NextnWeights::OfFile(file))
        } else {
            let Some(folder) = folder_of(self)? else {
                return Ok(None);
            };
            let tensors = folder.tensor_infos();
            let header = GgufHeader::of_form(folder.architecture(), folder.keys(), &tensors);
            let found = arch::describe_nextn(header)?;
            (found, NextnWeights::OfFolder(Box::new(folder)))
        };
        Ok(found.map(|(descriptor, layer_idx)| Nextn::new(descriptor, weights, layer_idx)))
    }
}

impl Model {
    /// Returns the tensors of MTP layers that [`Self::weights`] omits: for folders, under the names that a
    /// converter would give them.
    ///
    /// # Errors
    /// As [`FolderAsGguf::open`].
    pub fn nextn_infos(&self) -> Result<Vec<WeightInfo>, LoadError> {
        let Some(folder) = folder_of(self)? else {
            return Ok(Vec::new());
        };
        let n_layers = self.descriptor().layers.len();
        let is_behind = |info: &WeightInfo| {
            let layer = info
                .name
                .strip_prefix("blk.")
                .and_then(|rest| rest.split_once('.'));
            layer.is_some_and(|(idx, _)| idx.parse().is_ok_and(|idx: usize| idx >= n_layers))
        };
        Ok(folder.tensor_infos().into_iter().filter(is_behind).collect())
    }
}

/// Returns the model's folder in GGUF form, if the model is a folder and has MTP layers.
fn folder_of(model: &Model) -> Result<Option<FolderAsGguf>, LoadError> {
    let Some(files) = model.folder_files() else {
        return Ok(None);
    };
    let config = HfConfig::open(&files.config)?;
    if !arch::counts_nextn(&config) {
        return Ok(None);
    }
    FolderAsGguf::open_with(&files.folder, &config).map(Some)
}

/// The source of the layer's weights.
pub(crate) enum NextnWeights<'a> {
    OfFile(&'a (dyn WeightSource + Sync)),
    OfFolder(Box<FolderAsGguf>),
    /// A file next to the model, which may repeat some of the model's tensors.
    Beside {
        file: &'a GgufFile,
        model: &'a Model,
    },
}

impl NextnWeights<'_> {
    /// Returns the source of the layer's tensors.
    fn source(&self) -> &dyn WeightSource {
        match self {
            Self::OfFile(source) => *source,
            Self::OfFolder(folder) => folder.weights(),
            Self::Beside { file, .. } => *file,
        }
    }

    /// Returns the source of a tensor, given its name there.
    fn source_of(&self, file_name: &str) -> &dyn WeightSource {
        let Self::Beside { file, model } = self else {
            return self.source();
        };
        let is_shared = SHARED.contains(&file_name);
        match model.gguf() {
            // A folder may store norms in another form.
            None if is_shared => model.weights(),
            Some(of_model) if is_shared || !WeightSource::contains(*file, file_name) => of_model,
            _ => *file,
        }
    }
}

/// The tensors of the layer, under the names of a network with one layer.
struct NextnSource<'a> {
    weights: NextnWeights<'a>,
    layer_idx: usize,
}

/// Tensors of the network that a separate file may repeat.
const SHARED: [&str; 3] = ["token_embd.weight", "output.weight", "output.bias"];

/// Network tensors that the layer may have its own version of, by both names.
const OWN: [(&str, &str); 3] = [
    ("token_embd.weight", "nextn.embed_tokens.weight"),
    ("output.weight", "nextn.shared_head_head.weight"),
    ("output_norm.weight", "nextn.shared_head_norm.weight"),
];

impl NextnSource<'_> {
    fn has_own(&self, part: &str) -> bool {
        self.weights
            .source()
            .contains(&format!("blk.{}.{part}", self.layer_idx))
    }

    /// Returns whether embedding and head are the network's.
    fn shares(&self) -> bool {
        !self.has_own(OWN[0].1) && !self.has_own(OWN[1].1)
    }

    /// Returns the network's matrices that the layer uses.
    fn shared(&self) -> Option<SharedWeights> {
        let has_output = self.contains("output.weight");
        self.shares().then_some(SharedWeights { has_output })
    }

    /// Returns the file's name of a tensor.
    fn file_name<'n>(&self, name: &'n str) -> Cow<'n, str> {
        let own = OWN.iter().find(|(usual, _)| *usual == name).map(|(_, own)| *own);
        if let Some(part) = own.filter(|part| self.has_own(part)) {
            return Cow::Owned(format!("blk.{}.{part}", self.layer_idx));
        }
        let has = |name: &str| self.weights.source_of(name).contains(name);
        if name == "output.weight" && !has(name) && self.has_own(OWN[0].1) {
            // The network's head is tied to the network's embedding, not to the layer's.
            return Cow::Borrowed(OWN[0].0);
        }
        match name.strip_prefix("blk.0.") {
            Some(part) => Cow::Owned(format!("blk.{}.{part}", self.layer_idx)),
            None if name.starts_with("nextn.") => Cow::Owned(format!("blk.{}.{name}", self.layer_idx)),
            None => Cow::Borrowed(name),
        }
    }
}

impl WeightSource for NextnSource<'_> {
    fn infos(&self) -> Vec<WeightInfo> {
        let prefix = format!("blk.{}.", self.layer_idx);
        let of_layer = self.weights.source().infos().into_iter().filter_map(|info| {
            let part = info.name.strip_prefix(&prefix)?;
            let name = match OWN.iter().find(|(_, own)| *own == part) {
                Some((usual, _)) => (*usual).to_owned(),
                None if part.starts_with("nextn.") => part.to_owned(),
                None => format!("blk.0.{part}"),
            };
            Some(WeightInfo { name, ..info })
        });
        of_layer.collect()
    }

    fn tensor(&self, name: &str) -> Option<WeightTensor<'_>> {
        let name = self.file_name(name);
        self.weights.source_of(&name).tensor(&name)
    }

    fn own_name(&self, name: &str) -> Option<String> {
        let name = self.file_name(name);
        self.weights.source_of(&name).own_name(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Names(Vec<&'static str>);

    impl WeightSource for Names {
        fn infos(&self) -> Vec<WeightInfo> {
            let info = |name: &&str| WeightInfo {
                name: (*name).to_owned(),
                ty: tokenmill_gguf::TensorType::F32,
                dims: vec![1],
                n_bytes: 4,
                stored: None,
            };
            self.0.iter().map(info).collect()
        }

        fn contains(&self, name: &str) -> bool {
            self.0.contains(&name)
        }

        fn tensor(&self, _: &str) -> Option<WeightTensor<'_>> {
            None
        }
    }

    fn check(own: &[&'static str], name: &str, expected: &str) {
        let mut names = vec!["token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight"];
        names.extend(own);
        let names = Names(names);
        let source = NextnSource {
            weights: NextnWeights::OfFile(&names),
            layer_idx: 7,
        };
        assert_eq!(source.file_name(name), expected, "{own:?}");
    }

    #[test]
    fn the_layer_is_found_by_the_names_of_a_network_with_one() {
        check(&[], "blk.0.attn_q.weight", "blk.7.attn_q.weight");
        check(&[], "nextn.eh_proj.weight", "blk.7.nextn.eh_proj.weight");
        check(&[], "rope_freqs.weight", "rope_freqs.weight");
        check(&[], "output_norm.weight", "output_norm.weight");
        let norm = "blk.7.nextn.shared_head_norm.weight";
        check(&[norm], "output_norm.weight", norm);
        let head = "blk.7.nextn.shared_head_head.weight";
        check(&[head], "output.weight", head);
        let embedding = "blk.7.nextn.embed_tokens.weight";
        check(&[embedding], "token_embd.weight", embedding);
        check(&[embedding], "output.weight", "token_embd.weight");
        check(&[embedding, "output.weight"], "output.weight", "output.weight");
    }

    #[test]
    fn what_is_not_of_the_layer_is_not_asked_for() {
        let names = Names(vec![
            "token_embd.weight",
            "blk.0.attn_q.weight",
            "blk.7.attn_q.weight",
            "blk.7.nextn.enorm.weight",
            "blk.7.nextn.shared_head_norm.weight",
            "blk.70.attn_q.weight",
        ]);
        let source = NextnSource {
            weights: NextnWeights::OfFile(&names),
            layer_idx: 7,
        };
        let found: Vec<String> = source.infos().into_iter().map(|info| info.name).collect();
        assert_eq!(
            found,
            ["blk.0.attn_q.weight", "nextn.enorm.weight", "output_norm.weight"]
        );
        assert!(source.shares());
    }
}
