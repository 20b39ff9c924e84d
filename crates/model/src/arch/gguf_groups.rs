//! Groups of keys that several architectures share, as methods of [`GgufKeys`].

use crate::{LoadError, MixerDescriptor, SsmDescriptor, SsmKind};

use super::GgufKeys;

/// Largest accepted number of MTP layers. It bounds the size of lists.
pub(super) const MAX_DRAFT_LAYERS: usize = 64;

impl GgufKeys<'_> {
    /// Sets the width of a head, even if the configuration omits it.
    pub(super) fn set_own_head_width(&mut self) -> Result<(), LoadError> {
        self.set_head_width(self.sizes.head_dim)
    }

    /// Sets the number of heads and their width, even if the configuration omits the width.
    pub(super) fn set_own_heads(&mut self) -> Result<(), LoadError> {
        self.set_count("attention.head_count", self.sizes.n_heads)?;
        self.set_count("attention.head_count_kv", self.sizes.n_kv_heads)?;
        self.set_own_head_width()
    }

    /// Sets the widths of the dense networks: four times that of the embeddings if the configuration omits them.
    pub(super) fn dense_widths_or_usual(&mut self) -> Result<(), LoadError> {
        let usual = self.sizes.n_embd.saturating_mul(4);
        let widths = self.sizes.n_ff.iter();
        let widths: Vec<usize> = widths.map(|&n_ff| if n_ff > 0 { n_ff } else { usual }).collect();
        self.set_counts("feed_forward_length", &widths)
    }

    /// Sets the number of KV heads of each layer; 0 for layers without attention.
    pub(super) fn kv_heads_of_layers(
        &mut self,
        has_attention: impl Fn(usize) -> bool,
    ) -> Result<(), LoadError> {
        let n_kv_heads = self.sizes.n_kv_heads;
        let kv_heads: Vec<usize> = (0..self.sizes.n_layers)
            .map(|layer_idx| if has_attention(layer_idx) { n_kv_heads } else { 0 })
            .collect();
        self.set_count_list("attention.head_count_kv", &kv_heads)
    }

    /// Sets the window and which layers have it, if any layer has one.
    pub(super) fn windows_if_any(&mut self) -> Result<(), LoadError> {
        if self.facts.windows.iter().any(Option::is_some) {
            self.window()?;
            self.window_pattern();
        }
        Ok(())
    }

    /// Sets which layers have the window, unless it is all but every `period`th.
    pub(super) fn unusual_window_pattern(&mut self, period: usize) {
        let mut windows = self.facts.windows.iter().enumerate();
        if !windows.all(|(layer_idx, window)| window.is_some() != (layer_idx + 1).is_multiple_of(period)) {
            self.window_pattern();
        }
    }

    /// Sets the window of the layers that have one.
    pub(super) fn window_of_layers(&mut self) -> Result<(), LoadError> {
        match self.facts.windows.iter().find_map(|&window| window) {
            Some(window) => self.set_count("attention.sliding_window", window),
            None => Ok(()),
        }
    }

    /// Sets the number of layers that reuse the keys and values of others.
    pub(super) fn shared_kv(&mut self) -> Result<(), LoadError> {
        let n_sharing = self.config.opt_usize("num_kv_shared_layers")?;
        self.set_count("attention.shared_kv_layers", n_sharing.unwrap_or(0))
    }

    /// Sets the widths of latent attention.
    pub(super) fn latent_widths(&mut self) -> Result<(), LoadError> {
        let count = |key: &str| self.config.count(key);
        let (plain_dim, rotated_dim) = (count("qk_nope_head_dim")?, count("qk_rope_head_dim")?);
        let (kv_rank, head_dim_v) = (count("kv_lora_rank")?, count("v_head_dim")?);
        self.set_count("attention.key_length", kv_rank.saturating_add(rotated_dim))?;
        self.copy_count("attention.q_lora_rank", &["q_lora_rank"])?;
        self.set_count("attention.kv_lora_rank", kv_rank)?;
        self.set_count("attention.key_length_mla", plain_dim.saturating_add(rotated_dim))?;
        self.set_count("attention.value_length_mla", head_dim_v)?;
        self.set_count("rope.dimension_count", rotated_dim)
    }

    /// Sets the keys of experts after some dense layers, as DeepSeek's configurations name them.
    pub(super) fn routed_experts(&mut self) -> Result<(), LoadError> {
        self.copy_count("expert_count", &["n_routed_experts", "num_experts"])?;
        self.leading_dense_layers()?;
        self.copy_count("expert_feed_forward_length", &["moe_intermediate_size"])?;
        self.copy_count("expert_shared_count", &["n_shared_experts"])?;
        self.router()
    }

    /// Sets the width of the experts' shared network.
    pub(super) fn shared_width(&mut self) -> Result<(), LoadError> {
        let n_ff = self.facts.n_shared_ff.unwrap_or(0);
        self.set_count("expert_shared_feed_forward_length", n_ff)
    }

    /// Sets the number of leading dense layers. Newer configurations have a list of layer kinds instead.
    pub(super) fn leading_dense_layers(&mut self) -> Result<(), LoadError> {
        let listed = self.facts.expert_layers.as_ref();
        let first = listed.and_then(|listed| listed.iter().position(|&has_experts| has_experts));
        match (first, self.config.opt_usize("first_k_dense_replace")?) {
            (None | Some(0), None) => Ok(()),
            (Some(n_dense), _) | (None, Some(n_dense)) => {
                self.set_count("leading_dense_block_count", n_dense)
            }
        }
    }

    /// Sets the number of MTP layers, and includes them in the layer count.
    pub(super) fn draft_layers(&mut self, key: &str) -> Result<(), LoadError> {
        let n_drafting = self.config.opt_usize(key)?.unwrap_or(0);
        if n_drafting == 0 {
            return Ok(());
        }
        if n_drafting > MAX_DRAFT_LAYERS {
            return Err(self.config.wrong(key, "a small count of layers"));
        }
        self.set_count("block_count", self.sizes.n_layers + n_drafting)?;
        self.set_count("nextn_predict_layers", n_drafting)
    }

    /// Sets the sizes of the state space models of a network.
    pub(super) fn state_space(&mut self, ssm: SsmDescriptor) -> Result<(), LoadError> {
        self.facts.amend_layers(move |_, layer| {
            if let MixerDescriptor::Ssm(own) | MixerDescriptor::Both { ssm: own, .. } = &mut layer.mixer {
                (own.kind, own.conv_bias, own.bias) = (ssm.kind, ssm.conv_bias, ssm.bias);
            }
        });
        self.set_count("ssm.conv_kernel", ssm.n_taps)?;
        self.set_count("ssm.inner_size", ssm.n_heads.saturating_mul(ssm.head_dim))?;
        self.set_count("ssm.state_size", ssm.n_state)?;
        match ssm.kind {
            SsmKind::Mamba { dt_rank, has_norms } => {
                self.set_count("ssm.time_step_rank", dt_rank)?;
                self.set("ssm.dt_b_c_rms", has_norms);
                Ok(())
            }
            SsmKind::Mamba2 { .. } => {
                self.set_count("ssm.time_step_rank", ssm.n_heads)?;
                self.set_count("ssm.group_count", ssm.n_groups)
            }
        }
    }
}
