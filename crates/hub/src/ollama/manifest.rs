//! [`Manifest`]: the layers of a model of Ollama's registry.
//!
//! It comes from a server or from other programs, so all of it is checked here. Invariant: a digest is 64
//! hexadecimal digits, and so can name a file.

use serde_json::Value;

/// Maximum number of layers: more than any model has.
const MAX_LAYERS: usize = 1024;
/// Largest manifest, in bytes; a layer takes about two hundred.
const MAX_MANIFEST_BYTES: usize = 1 << 20;
/// Largest credible layer, in bytes.
const MAX_LAYER_BYTES: u64 = 1 << 50;

/// A layer: a file, named by its SHA-256.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    /// 64 hexadecimal digits.
    pub(super) digest: String,
    pub(super) n_bytes: u64,
    kind: String,
}

impl Layer {
    fn is_weights(&self) -> bool {
        self.kind == "application/vnd.ollama.image.model"
    }
}

/// The parts of a model.
#[derive(Debug)]
pub(super) struct Manifest {
    /// All layers, each file once, the configuration first.
    pub(super) layers: Vec<Layer>,
    /// The GGUF file.
    pub(super) weights: Layer,
}

impl Manifest {
    /// Returns the layer that describes the model; other programs may omit it.
    pub(super) fn config(&self) -> Option<&Layer> {
        self.layers.first().filter(|layer| !layer.is_weights())
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// An error if it is invalid or has a layer that this program cannot use.
    pub(super) fn of(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(format!("it has {} bytes", bytes.len()));
        }
        let json: Value =
            serde_json::from_slice(bytes).map_err(|error| format!("it is not JSON: {error}"))?;
        let listed = json["layers"].as_array().map(Vec::as_slice).unwrap_or_default();
        if listed.len() > MAX_LAYERS {
            return Err(format!("it has {} layers", listed.len()));
        }
        let mut layers: Vec<Layer> = Vec::new();
        for value in [&json["config"]].into_iter().chain(listed) {
            let layer = layer(value)?;
            if layer.kind == "application/vnd.ollama.image.adapter" {
                return Err("it has an adapter, which is not supported".to_owned());
            }
            if layer.kind == "application/vnd.ollama.image.tensor" {
                return Err("its weights are single tensors, not a GGUF file".to_owned());
            }
            if !layers.iter().any(|known| known.digest == layer.digest) {
                layers.push(layer);
            }
        }
        let mut weights = layers.iter().filter(|layer| layer.is_weights());
        match (weights.next(), weights.next()) {
            (Some(one), None) => Ok(Self {
                weights: one.clone(),
                layers,
            }),
            (None, _) => Err("it has no weights: such a model runs on Ollama's servers".to_owned()),
            (Some(_), Some(_)) => Err("it has weights in several files".to_owned()),
        }
    }
}

fn layer(value: &Value) -> Result<Layer, String> {
    let digest = value["digest"].as_str().unwrap_or_default();
    let hex = digest.strip_prefix("sha256:").unwrap_or_default();
    if hex.len() != 64 || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return Err("the digest of a layer is not a SHA-256".to_owned());
    }
    let n_bytes = value["size"]
        .as_u64()
        .filter(|n_bytes| *n_bytes <= MAX_LAYER_BYTES);
    Ok(Layer {
        digest: hex.to_owned(),
        n_bytes: n_bytes.ok_or("a layer has no size")?,
        kind: value["mediaType"].as_str().unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn layer_of(kind: &str, digit: &str, size: u64) -> Value {
        let digest = format!("sha256:{}", digit.repeat(64));
        json!({"mediaType": format!("application/vnd.ollama.image.{kind}"), "digest": digest, "size": size})
    }

    fn check(layers: &[Value]) -> Result<Manifest, String> {
        let config = json!({"digest": format!("sha256:{}", "c".repeat(64)), "size": 2});
        Manifest::of(json!({"config": config, "layers": layers}).to_string().as_bytes())
    }

    #[test]
    fn a_manifest_has_weights_in_one_file() {
        let (weights, template) = (layer_of("model", "a", 9), layer_of("template", "b", 3));
        let manifest = check(&[weights.clone(), template.clone(), template.clone()]).unwrap();
        assert_eq!((manifest.weights.n_bytes, manifest.layers.len()), (9, 3));
        let reason = |layers: &[Value]| check(layers).unwrap_err();
        assert!(reason(&[template]).contains("no weights"));
        assert!(reason(&[weights.clone(), layer_of("model", "e", 9)]).contains("several files"));
        assert!(reason(&[weights, layer_of("adapter", "e", 9)]).contains("adapter"));
    }

    #[test]
    fn a_digest_that_is_none_names_no_file() {
        for digest in ["../x", "sha256:../../x", "", "sha256:abc", "md5:0"] {
            let weights =
                json!({"mediaType": "application/vnd.ollama.image.model", "digest": digest, "size": 1});
            assert!(check(&[weights]).unwrap_err().contains("SHA-256"), "{digest}");
        }
        assert!(check(&[layer_of("model", "a", u64::MAX)]).is_err());
        assert!(Manifest::of(b"[").is_err() && Manifest::of(b"7").is_err());
        let long = Manifest::of(&vec![b' '; MAX_MANIFEST_BYTES + 1]).unwrap_err();
        assert_eq!(long, "it has 1048577 bytes");
    }
}
