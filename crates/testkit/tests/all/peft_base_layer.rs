//! Tests adapters whose folders also have the base weight, as PEFT saves it with a head: they give the same adapter as without it.

use serde_json::{Value, json};
use tokenmill_gguf::{GgufFile, TensorType};
use tokenmill_model::Model;
use tokenmill_testkit::{
    TinyModel,
    adapter_files::{PairShapes, peft_adapter},
    tiny_llama,
};

/// Writes a safetensors file with one more tensor of zeros.
fn with_tensor(file: &[u8], name: &str, shape: &[usize]) -> Vec<u8> {
    let len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let mut header: Value = serde_json::from_slice(&file[8..8 + len]).unwrap();
    let data = &file[8 + len..];
    let n_bytes = 2 * shape.iter().product::<usize>();
    header[name] =
        json!({ "dtype": "BF16", "shape": shape, "data_offsets": [data.len(), data.len() + n_bytes] });
    let header = header.to_string();
    let mut changed = (header.len() as u64).to_le_bytes().to_vec();
    changed.extend_from_slice(header.as_bytes());
    changed.extend_from_slice(data);
    changed.resize(changed.len() + n_bytes, 0);
    changed
}

#[test]
fn a_weight_of_the_base_next_to_its_matrices_is_passed_over() {
    let bytes = TinyModel::random(tiny_llama(), TensorType::F32, 1)
        .to_gguf()
        .unwrap();
    let model = Model::from_gguf(GgufFile::from_bytes(&bytes).unwrap()).unwrap();
    let infos = model.weights().infos();
    let queries = infos
        .iter()
        .find(|info| info.name == "blk.0.attn_q.weight")
        .unwrap();
    let (n_out, n_in) = (queries.dims[1], queries.dims[0]);
    let shapes = PairShapes {
        a: [2, n_in],
        b: [n_out, 2],
    };
    let [config, plain] = peft_adapter(2, shapes);
    let reader = model.adapter_reader();
    let expected = reader.from_peft(&config, &plain).unwrap();
    let module = "base_model.model.model.layers.0.self_attn.q_proj";
    for (end, shape) in [("weight", &[n_out, n_in][..]), ("bias", &[n_out][..])] {
        let file = with_tensor(&plain, &format!("{module}.base_layer.{end}"), shape);
        let found = reader.from_peft(&config, &file).unwrap();
        let facts = |adapter: &tokenmill_backend::Adapter| {
            let weights = adapter.weights.iter();
            weights
                .map(|weight| {
                    (
                        weight.tensor.clone(),
                        weight.rank,
                        weight.a.bytes.clone(),
                        weight.b.bytes.clone(),
                    )
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(facts(&found), facts(&expected), "{end}");
    }
    // For a module without matrices it changes the base.
    let other = "base_model.model.model.layers.1.self_attn.q_proj.base_layer.weight";
    let error = reader
        .from_peft(&config, &with_tensor(&plain, other, &[n_out, n_in]))
        .unwrap_err();
    assert!(error.to_string().contains(other), "{error}");
}
