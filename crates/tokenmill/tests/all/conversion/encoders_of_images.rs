//! Image encoders: folders become the files that llama.cpp's converter makes of them.

use serde_json::Value as Json;
use tokenmill_gguf::Array;
use tokenmill_testkit::crc32;

use super::*;

/// The families, by the folders of their models.
const FAMILIES: [&str; 4] = ["gemma3", "qwen2vl", "qwen2.5vl", "qwen3vl"];

/// Keys in our files that the reference's lack: the family, the key, and the reason.
const EXTRA: &[(&str, &str, &str)] = &[(
    "qwen2.5vl",
    "clip.vision.window_size",
    "this model's windows are not those of 112 pixels that readers take for granted",
)];

/// A tensor whose numbers differ: the reference adds one to those of its norm in half precision, as the folder has them.
const MORE_EXACT: (&str, &str) = ("gemma3", "mm.soft_emb_norm.weight");

fn data(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/vision")
        .join(family)
}

fn convert_encoder(folder: &Path, out: OutType) -> Result<(tempfile::TempDir, GgufFile), Error> {
    let temporary = tempfile::tempdir().unwrap();
    let path = temporary.path().join("mmproj.gguf");
    Conversion::open_encoder(folder)?.write(&path, out, Some(2), &mut |_| ControlFlow::Continue(()))?;
    let file = GgufFile::open(&path).unwrap();
    Ok((temporary, file))
}

/// A value of a key as JSON has it.
fn json_of(value: &Value) -> Json {
    match value {
        Value::Bool(value) => json!(value),
        Value::U32(value) => json!(value),
        Value::F32(value) => json!(f64::from(*value)),
        Value::String(value) => json!(value),
        Value::Array(Array::F32(numbers)) => numbers.iter().map(|&number| f64::from(number)).collect(),
        Value::Array(Array::Bool(claims)) => claims.iter().copied().collect(),
        other => panic!("{other:?}"),
    }
}

/// Compares a file with what the reference's was found to hold, but for the name.
fn check_file(family: &str, out: &str, file: &GgufFile, expected: &Json) {
    let is_extra = |key: &str| EXTRA.iter().any(|(of, extra, _)| *of == family && *extra == key);
    let own: serde_json::Map<String, Json> = (file.metadata().iter())
        .filter(|(key, _)| !is_extra(key))
        .map(|(key, value)| (key.to_owned(), json_of(value)))
        .collect();
    assert_eq!(Json::Object(own), expected["keys"], "{family} as {out}");
    let mut expected = expected["tensors"].clone();
    if family == MORE_EXACT.0 {
        // As the file has it that is compared with transformers.
        let exact = GgufFile::open(data(family).join("mmproj-model.gguf")).unwrap();
        let bytes = exact.tensor(MORE_EXACT.1).unwrap().bytes.to_vec().unwrap();
        let found = expected[MORE_EXACT.1][2].take();
        assert_ne!(found, json!(crc32(&bytes)), "the reference is exact too");
        expected[MORE_EXACT.1][2] = json!(crc32(&bytes));
    }
    let tensors: serde_json::Map<String, Json> = (file.tensors())
        .map(|info| {
            let bytes = file.tensor(&info.name).unwrap().bytes.to_vec().unwrap();
            let is = json!([info.ty.name(), info.dims, crc32(&bytes)]);
            (info.name.clone(), is)
        })
        .collect();
    assert_eq!(Json::Object(tensors), expected, "{family} as {out}");
}

#[test]
fn encoders_of_images_are_those_of_the_reference() {
    let mut comparisons = Comparisons::of("image encoders of folders");
    for family in FAMILIES {
        let listing = fs::read(data(family).join("mmproj.json")).unwrap();
        let listing: serde_json::Map<String, Json> = serde_json::from_slice(&listing).unwrap();
        assert_eq!(listing.len(), 5);
        for (out, expected) in &listing {
            let (_temporary, file) = convert_encoder(&data(family).join("hf"), out.parse().unwrap()).unwrap();
            check_file(family, out, &file, expected);
            comparisons.compared(1);
        }
    }
}

/// A copy of a folder whose JSON files tests change.
struct Changed(tempfile::TempDir);

impl Changed {
    fn of(family: &str) -> Self {
        Self(copy(&data(family).join("hf")))
    }

    fn json(&self, name: &str, pointer: &str, value: Json) -> &Self {
        let path = self.0.path().join(name);
        let mut config: Json = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let (object, key) = pointer.rsplit_once('/').unwrap();
        config.pointer_mut(object).unwrap()[key] = value;
        fs::write(path, config.to_string()).unwrap();
        self
    }

    /// Renames a tensor to a name of the same length, or changes something else of the header.
    fn header(&self, from: &str, to: &str) -> &Self {
        assert_eq!(from.len(), to.len());
        let path = self.0.path().join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        let at = (bytes.windows(from.len()))
            .position(|window| window == from.as_bytes())
            .unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        fs::write(path, bytes).unwrap();
        self
    }

    fn refused(&self) -> String {
        match Conversion::open_encoder(self.0.path()) {
            Ok(_) => "it was not refused".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    /// Converts to the file of another folder.
    fn is_as(&self, family: &str) {
        let listing: Json =
            serde_json::from_slice(&fs::read(data(family).join("mmproj.json")).unwrap()).unwrap();
        // The name is that of the temporary folder.
        let (_temporary, file) = convert_encoder(self.0.path(), OutType::Auto).unwrap();
        let mut expected = listing["auto"].clone();
        expected["keys"]["general.name"] = json!(file.metadata().str("general.name").unwrap());
        check_file(family, "auto", &file, &expected);
    }
}

#[test]
fn folders_say_the_same_in_other_words() {
    // The class of Qwen 3 VL with experts, whose encoder is the same.
    let classes = json!(["Qwen3VLMoeForConditionalGeneration"]);
    Changed::of("qwen3vl")
        .json("config.json", "/architectures", classes)
        .is_as("qwen3vl");
    // Positions say the size of the image that the encoder was trained with, if nothing else does.
    Changed::of("qwen3vl")
        .json("config.json", "/vision_config/image_size", json!(null))
        .is_as("qwen3vl");
    // Newer folders have the processor of images as a part of another file, which comes first.
    let changed = Changed::of("gemma3");
    let path = |name: &str| changed.0.path().join(name);
    let of_images: Json =
        serde_json::from_slice(&fs::read(path("preprocessor_config.json")).unwrap()).unwrap();
    fs::write(
        path("processor_config.json"),
        json!({"image_processor": of_images}).to_string(),
    )
    .unwrap();
    changed
        .json("preprocessor_config.json", "/image_mean", json!([0.1, 0.2, 0.3]))
        .is_as("gemma3");
    fs::remove_file(path("preprocessor_config.json")).unwrap();
    changed.is_as("gemma3");
}

#[test]
fn encoders_that_cannot_be_written_are_refused_by_name() {
    let check = |found: String, expected: &str| assert!(found.contains(expected), "{found}, not {expected}");
    let config = |family: &str, pointer: &str, value: Json, expected: &str| {
        check(
            Changed::of(family).json("config.json", pointer, value).refused(),
            expected,
        );
    };
    config(
        "gemma3",
        "/vision_config",
        json!(null),
        "there is no `vision_config`",
    );
    config(
        "gemma3",
        "/architectures",
        json!(["LlavaForConditionalGeneration"]),
        "of LlavaForConditionalGeneration is not supported",
    );
    config(
        "gemma3",
        "/mm_tokens_per_image",
        json!(15),
        "`mm_tokens_per_image` is 15",
    );
    config(
        "gemma3",
        "/mm_tokens_per_image",
        json!(9),
        "`mm_tokens_per_image` is 9",
    );
    config(
        "gemma3",
        "/vision_config/hidden_size",
        json!(null),
        "`vision_config.hidden_size` is missing",
    );
    config(
        "gemma3",
        "/vision_config/hidden_size",
        json!(48),
        "expected that of the projection's inputs",
    );
    config(
        "gemma3",
        "/vision_config/intermediate_size",
        json!(44),
        "(`vision_tower.vision_model.encoder.layers.0.mlp.fc1.",
    );
    config(
        "gemma3",
        "/vision_config/num_hidden_layers",
        json!(3),
        "(`vision_tower.vision_model.encoder.layers.2.layer_norm1.weight` in the folder)",
    );
    config(
        "gemma3",
        "/vision_config/num_hidden_layers",
        json!(1),
        "has no place in a `clip (gemma3)` network",
    );
    config(
        "gemma3",
        "/vision_config/num_hidden_layers",
        json!(1_000_000),
        "expected at most 1024",
    );
    config(
        "gemma3",
        "/vision_config/hidden_act",
        json!("relu"),
        "`vision_config.hidden_act` is \"relu\", expected gelu_pytorch_tanh",
    );
    config(
        "qwen2vl",
        "/vision_config/temporal_patch_size",
        json!(1),
        "`vision_config.temporal_patch_size` is 1, expected 2",
    );
    config(
        "qwen2.5vl",
        "/vision_config/fullatt_block_indexes",
        json!([0, 3]),
        "expected the last of every few layers",
    );
    config(
        "qwen2.5vl",
        "/vision_config/fullatt_block_indexes",
        json!([1]),
        "expected the last of every few layers",
    );
    config(
        "qwen2.5vl",
        "/vision_config/fullatt_block_indexes",
        json!([]),
        "expected the last of every few layers",
    );
    config(
        "qwen2.5vl",
        "/vision_config/fullatt_block_indexes",
        json!([9]),
        "expected a list of layers that there are",
    );
    config(
        "qwen3vl",
        "/vision_config/deepstack_visual_indexes",
        json!([2, 0]),
        "expected layers in their order",
    );
    config(
        "qwen3vl",
        "/vision_config/deepstack_visual_indexes",
        json!([0, 1, 2]),
        "visual.deepstack_merger_list.2.linear_fc1.bias` in the folder)",
    );
    config(
        "qwen3vl",
        "/vision_config/deepstack_visual_indexes",
        json!([0]),
        "visual.deepstack_merger_list.1.",
    );

    let processor = |value: Json| {
        Changed::of("qwen2vl")
            .json("preprocessor_config.json", "/image_std", value)
            .refused()
    };
    for value in [json!(null), json!([0.5, 0.5]), json!([0.5, 0.5, "x"])] {
        check(processor(value), "has `image_std` with three numbers");
    }
    check(
        processor(json!([0.5, 0.5, 0])),
        "deviation of the pixels is 0, expected a positive number",
    );

    let missing = Changed::of("gemma3");
    missing.header(
        "multi_modal_projector.mm_soft_emb_norm.weight",
        "language_model_of_the.mm_soft_emb_norm.weight",
    );
    check(
        missing.refused(),
        "tensor `mm.soft_emb_norm.weight` is missing (`multi_modal_projector.mm_soft_emb_norm.weight` in the folder)",
    );
    // Two generations of Qwen call a matrix of the same place by two names.
    let missing = Changed::of("qwen2.5vl");
    missing.header(
        "visual.blocks.1.mlp.up_proj.weight",
        "visuel.blocks.1.mlp.up_proj.weight",
    );
    check(
        missing.refused(),
        "is missing (`visual.blocks.1.mlp.up_proj.weight` in the folder)",
    );
    let unknown = Changed::of("gemma3");
    unknown.header(
        "vision_tower.vision_model.post_layernorm.bias",
        "vision_tower.vision_model.more_layernorm.bias",
    );
    check(
        unknown.refused(),
        "tensor `vision_tower.vision_model.more_layernorm.bias` has an unknown name",
    );
    let twice = Changed::of("gemma3");
    let [weights, again] = ["model.safetensors", "more.safetensors"].map(|name| twice.0.path().join(name));
    fs::copy(weights, again).unwrap();
    check(twice.refused(), "have one place in the encoder");

    let scalar = Changed::of("qwen2vl");
    let header = br#"{"visual.blocks.7.attn.qkv.bias":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
    fs::write(scalar.0.path().join("more.safetensors"), bytes).unwrap();
    check(
        scalar.refused(),
        "tensor `visual.blocks.7.attn.qkv.bias` has 0 rows, expected as many queries as keys and values",
    );

    let preset = convert_encoder(&data("gemma3").join("hf"), "q4_k_m".parse().unwrap());
    check(
        preset.err().unwrap().to_string(),
        "an image encoder cannot be written as Q4_K_M",
    );
}
