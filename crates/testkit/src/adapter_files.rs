//! Adapter files with one pair of matrices of any shapes, in both forms, for tests of refusals.
//!
//! Tests of readers, the server and the program share them. Invariant: only the shapes are wrong.

use std::{fs, path::Path};

use serde_json::json;
use tokenmill_gguf::{GgufWriter, TensorType};

/// The shapes of a pair: `a` as `[rank, n_in]` and `b` as `[n_out, rank]`.
#[derive(Clone, Copy, Debug)]
pub struct PairShapes {
    /// The shape of the first matrix.
    pub a: [usize; 2],
    /// The shape of the second matrix.
    pub b: [usize; 2],
}

/// Returns a GGUF file with a pair for the queries of the first layer. A shape of 0 is written over the header, which no writer would
/// write.
///
/// # Panics
/// If the shapes are absurd.
pub fn gguf_adapter(arch: &str, shapes: PairShapes) -> Vec<u8> {
    let mut writer = GgufWriter::new();
    let metadata = writer.metadata_mut();
    for (key, value) in [
        ("general.type", "adapter"),
        ("general.architecture", arch),
        ("adapter.type", "lora"),
    ] {
        metadata.insert(key, value).expect("a key");
    }
    metadata.insert("adapter.lora.alpha", 4.0_f32).expect("a key");
    let pair = [("lora_a", shapes.a), ("lora_b", shapes.b)];
    for (which, [n_rows, n_cols]) in pair {
        let dims = [n_cols, n_rows].map(|n| n.max(1) as u64);
        let name = format!("blk.0.attn_q.weight.{which}");
        writer
            .add_tensor(&name, TensorType::F32, &dims)
            .expect("a matrix");
    }
    let mut data = writer.write_header(Vec::new()).expect("a header");
    for (_, shape) in pair {
        let n = shape.map(|n| n.max(1)).into_iter().product::<usize>();
        data.write(&vec![0; n * size_of::<f32>()]).expect("the numbers");
    }
    let mut bytes = data.finish().expect("a file");
    for (which, [n_rows, n_cols]) in pair {
        let name = which.as_bytes();
        let at = (bytes.windows(name.len()).position(|window| window == name)).expect("its name");
        // After the name: the number of dimensions, then these.
        let dims = at + name.len() + size_of::<u32>();
        for (i, n) in [n_cols, n_rows].into_iter().enumerate() {
            bytes[dims + 8 * i..][..8].copy_from_slice(&(n as u64).to_le_bytes());
        }
    }
    bytes
}

/// Returns the two files of a PEFT folder, `adapter_config.json` and `adapter_model.safetensors`, with a pair for the queries of the
/// first layer and the rank `r` in the configuration.
pub fn peft_adapter(r: usize, shapes: PairShapes) -> [Vec<u8>; 2] {
    let module = "base_model.model.model.layers.0.self_attn.q_proj";
    let n_bytes = |shape: [usize; 2]| shape.into_iter().product::<usize>() * size_of::<f32>();
    let (of_a, of_b) = (n_bytes(shapes.a), n_bytes(shapes.b));
    let header = json!({
        format!("{module}.lora_A.weight"): { "dtype": "F32", "shape": shapes.a, "data_offsets": [0, of_a] },
        format!("{module}.lora_B.weight"): { "dtype": "F32", "shape": shapes.b, "data_offsets": [of_a, of_a + of_b] },
    })
    .to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + of_a + of_b, 0);
    let config = json!({ "peft_type": "LORA", "r": r, "lora_alpha": 4 });
    [config.to_string().into_bytes(), file]
}

/// Lists adapters that no model takes, in both forms, with the names of their files or folders and a part of each error message. The
/// model's queries have `n_in` inputs and `n_out` outputs.
pub fn wrong_adapters(arch: &str, n_in: usize, n_out: usize) -> Vec<WrongAdapter> {
    let shapes = |rank_a, n_in, n_out, rank_b| PairShapes {
        a: [rank_a, n_in],
        b: [n_out, rank_b],
    };
    let cases = [
        (
            "rank-0",
            0,
            shapes(0, n_in, n_out, 0),
            "blk.0.attn_q.weight.lora_a",
            "rank 0",
        ),
        (
            "two-ranks",
            2,
            shapes(2, n_in, n_out, 3),
            "share no rank",
            "and rank 2",
        ),
        (
            "wide",
            2,
            shapes(2, n_in + 1, n_out, 2),
            "attn_q.weight",
            "attn_q.weight",
        ),
        (
            "tall",
            2,
            shapes(2, n_in, n_out * 2, 2),
            "attn_q.weight",
            "attn_q.weight",
        ),
    ];
    let mut wrong = Vec::new();
    for (name, r, shapes, of_gguf, of_peft) in cases {
        wrong.push(WrongAdapter {
            name: format!("{name}.gguf"),
            part: of_gguf,
            files: vec![(None, gguf_adapter(arch, shapes))],
        });
        let [config, tensors] = peft_adapter(r, shapes);
        wrong.push(WrongAdapter {
            name: name.to_owned(),
            part: of_peft,
            files: vec![
                (Some("adapter_config.json"), config),
                (Some("adapter_model.safetensors"), tensors),
            ],
        });
    }
    // A rank of 0 only in the configuration, whose scale would be infinite.
    let [config, tensors] = peft_adapter(0, shapes(2, n_in, n_out, 2));
    wrong.push(WrongAdapter {
        name: "rank-0-by-its-word".to_owned(),
        part: "rank 0",
        files: vec![
            (Some("adapter_config.json"), config),
            (Some("adapter_model.safetensors"), tensors),
        ],
    });
    wrong
}

/// An adapter that has to be refused.
#[derive(Clone, Debug)]
pub struct WrongAdapter {
    /// The name of the file or the folder.
    pub name: String,
    /// A part of the error message.
    pub part: &'static str,
    files: Vec<(Option<&'static str>, Vec<u8>)>,
}

impl WrongAdapter {
    /// Writes it into a folder.
    ///
    /// # Panics
    /// If that cannot be written.
    pub fn write(&self, folder: &Path) {
        let path = folder.join(&self.name);
        for (name, bytes) in &self.files {
            match name {
                None => fs::write(&path, bytes).expect("the file"),
                Some(name) => {
                    fs::create_dir_all(&path).expect("the folder");
                    fs::write(path.join(name), bytes).expect("the file");
                }
            }
        }
    }
}
