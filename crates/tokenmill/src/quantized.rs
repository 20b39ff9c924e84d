//! Quantizes a model of a folder while it loads.
//!
//! The load does not know the original types of its weights. Invariant: the types are those of a file
//! quantized with the preset, and are chosen before any weight is read.

use std::{collections::BTreeMap, path::Path};

use tokenmill_convert::{ModelShape, Preset, Recipe, TensorShape, TypeChoice, choose};
use tokenmill_gguf::TensorType;
use tokenmill_model::{FolderAsGguf, Model as Network};
use tokenmill_quant::Format;

use crate::{Error, model_source::ModelSource};

/// Chooses the types of an opened folder's tensors, in which they will be loaded.
pub(crate) fn quantize(network: &mut Network, source: &ModelSource, preset: Preset) -> Result<(), Error> {
    let ModelSource::Folder(folder) = source else {
        return Err(Error::QuantizesFile);
    };
    let types_of_file = types_of_file(folder, preset)?;
    let mut types: BTreeMap<String, TensorType> = BTreeMap::new();
    for info in network.weights().infos() {
        let Some(choice) = types_of_file.get(&info.name) else {
            continue;
        };
        // Tensors that the folder has quantized already, such as the experts of gpt-oss, stay as they are.
        if choice.ty == info.ty || info.ty.block_len() > 1 {
            continue;
        }
        let has_encoder = Format::of(choice.ty).is_ok_and(Format::has_encoder);
        if choice.needs_importance || !has_encoder {
            return Err(Error::NeedsImportance { preset });
        }
        types.insert(info.name.clone(), choice.ty);
    }
    network.encode_weights(&types)?;
    Ok(())
}

/// The types of the tensors of a file that was made of a folder and quantized then: the choice asks for the file's keys, and counts its
/// tensors, those of layers for drafts among them, which a load may leave out.
fn types_of_file(folder: &Path, preset: Preset) -> Result<BTreeMap<String, TypeChoice>, Error> {
    let file = FolderAsGguf::open(folder)?;
    let mut keys = file.keys().clone();
    keys.insert("general.architecture", file.architecture())?;
    let infos = file.weights().infos();
    let shapes: Vec<TensorShape<'_>> = (infos.iter())
        .map(|info| TensorShape {
            name: &info.name,
            ty: info.ty,
            dims: &info.dims,
        })
        .collect();
    let choices = choose(&ModelShape::of(&keys)?, &Recipe::new(preset), false, &shapes)?;
    let names = infos.iter().map(|info| info.name.clone());
    Ok(names.zip(choices).collect())
}
