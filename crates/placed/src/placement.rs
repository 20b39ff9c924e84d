//! [`Placement`]: the side of each part of a network.
//!
//! A plan is made, printed and refused before there is a backend. Invariants: every part has a side; keys,
//! values and states are on the side of their layer's mixer; the output is on the device.

use tokenmill_backend::{KvLayout, MatrixUsage, NetworkPart, NetworkShape, Side, StateLayout};

/// The sides of a layer's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerPlacement {
    /// The mixer, with its keys and values or its state.
    pub mixer: Side,
    /// The feed-forward network, with the router of experts.
    pub ffn: Side,
    /// The matrices of experts, if the layer has any.
    pub experts: Side,
}

impl LayerPlacement {
    /// Returns a placement with the whole layer on one side.
    pub fn whole(side: Side) -> Self {
        Self {
            mixer: side,
            ffn: side,
            experts: side,
        }
    }

    fn is_whole(self, side: Side) -> bool {
        self == Self::whole(side)
    }
}

/// The side of each part of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    layers: Vec<LayerPlacement>,
    /// Sides of each layer of the KV store; both if layers of an encoder on both sides share one.
    kv: Vec<Sides>,
    /// Side of each layer of the store of states.
    states: Vec<Side>,
    has_experts: Vec<bool>,
    /// Number of rows of which, on average, one goes to each expert; 1 without experts.
    rows_of_expert: usize,
    /// Whether layers read keys and values on the other side.
    reads_across: bool,
    /// Number of tokens of a step from which the device computes its feed-forward networks; if it is more
    /// than 1, the host has them too.
    min_device_tokens: usize,
}

/// One side or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sides(pub(crate) [bool; 2]);

impl Sides {
    pub(crate) const NONE: Self = Self([false; 2]);
    pub(crate) const BOTH: Self = Self([true; 2]);

    pub(crate) fn one(side: Side) -> Self {
        Self::NONE.with(side)
    }

    pub(crate) fn with(mut self, side: Side) -> Self {
        self.0[side as usize] = true;
        self
    }

    pub(crate) fn has(self, side: Side) -> bool {
        self.0[side as usize]
    }
}

impl Placement {
    /// Creates the placement of a network's layers.
    ///
    /// # Panics
    /// If the number of places differs from the number of layers.
    pub fn new(network: &NetworkShape, layers: Vec<LayerPlacement>) -> Self {
        assert_eq!(network.layers.len(), layers.len(), "a place for each layer");
        let mut kv = Vec::new();
        let mut states = Vec::new();
        for (shape, place) in network.layers.iter().zip(&layers) {
            if let Some(store) = shape.kv {
                if kv.len() <= store.idx {
                    kv.resize(store.idx + 1, Sides::NONE);
                }
                if store.is_owner {
                    kv[store.idx] = kv[store.idx].with(place.mixer);
                }
            }
            if shape.state.is_some() {
                states.push(place.mixer);
            }
        }
        let reads_across = (network.layers.iter().zip(&layers))
            .any(|(shape, place)| (shape.kv).is_some_and(|store| kv[store.idx].has(place.mixer.other())));
        let rows_of_expert = (network.layers.iter().filter_map(|layer| layer.experts))
            .map(|experts| experts.n_experts.div_ceil(experts.n_used.max(1)))
            .max();
        Self {
            rows_of_expert: rows_of_expert.unwrap_or(1).max(1),
            reads_across,
            has_experts: network
                .layers
                .iter()
                .map(|layer| layer.experts.is_some())
                .collect(),
            layers,
            kv,
            states,
            min_device_tokens: 1,
        }
    }

    /// Places the last `n` layers on the device, and the others on the host.
    pub fn last_layers(network: &NetworkShape, n: usize) -> Self {
        let n_layers = network.layers.len();
        let first = n_layers.saturating_sub(n);
        let side = |layer_idx| {
            if layer_idx < first {
                Side::Host
            } else {
                Side::Device
            }
        };
        let layers = (0..n_layers).map(|layer_idx| LayerPlacement::whole(side(layer_idx)));
        Self::new(network, layers.collect())
    }

    /// Gives the device's feed-forward networks to the host too, which computes them in steps with fewer than
    /// `n_tokens` tokens.
    #[must_use]
    pub fn with_min_device_tokens(mut self, n_tokens: usize) -> Self {
        self.min_device_tokens = n_tokens.max(1);
        self
    }

    /// Returns the number of tokens of a step from which the device computes its feed-forward networks.
    pub fn min_device_tokens(&self) -> usize {
        self.min_device_tokens
    }

    /// Returns the places of the layers.
    pub fn layers(&self) -> &[LayerPlacement] {
        &self.layers
    }

    /// Returns whether no part of any layer is on the host.
    pub fn is_all_on_device(&self) -> bool {
        self.min_device_tokens == 1 && self.layers.iter().all(|layer| layer.is_whole(Side::Device))
    }

    /// Returns whether no part of any layer is on the device.
    pub fn is_all_on_host(&self) -> bool {
        (self.layers.iter().zip(&self.has_experts)).all(|(layer, &has_experts)| {
            layer.mixer == Side::Host
                && layer.ffn == Side::Host
                && (layer.experts == Side::Host || !has_experts)
        })
    }

    /// Returns the numbers of layers on the host and on the device, if these are whole layers, the device's
    /// follow the host's, and neither reads from the other.
    pub(crate) fn n_in_order(&self) -> Option<(usize, usize)> {
        let n_host = (self.layers.iter())
            .take_while(|layer| layer.is_whole(Side::Host))
            .count();
        let n_device = self.layers.len() - n_host;
        let is_in_order = (self.layers[n_host..].iter()).all(|layer| layer.is_whole(Side::Device));
        (n_host > 0 && n_device > 0 && is_in_order && !self.reads_across).then_some((n_host, n_device))
    }

    pub(crate) fn rows_of_expert(&self) -> usize {
        self.rows_of_expert
    }

    /// Returns the sides that have a part.
    pub(crate) fn sides(&self, part: NetworkPart) -> Sides {
        let routed = |side: Side| {
            let sides = Sides::one(side);
            if side == Side::Device && self.min_device_tokens > 1 {
                sides.with(Side::Host)
            } else {
                sides
            }
        };
        match part {
            NetworkPart::Common => Sides::BOTH,
            NetworkPart::Input => Sides::one(self.input()),
            NetworkPart::Output => Sides::one(Side::Device),
            NetworkPart::Mixer(layer_idx) => Sides::one(self.layers[layer_idx].mixer),
            NetworkPart::Ffn(layer_idx) => routed(self.layers[layer_idx].ffn),
            NetworkPart::Experts(layer_idx) => routed(self.layers[layer_idx].experts),
            NetworkPart::Kv(kv_idx) => self.kv[kv_idx],
            NetworkPart::State(state_idx) => Sides::one(self.states[state_idx]),
        }
    }

    /// Returns the side on which a part's operations run. `goes_to_device` says whether the device computes
    /// the parts that both sides have in this step; `now` is the current side, for operations that belong to
    /// none.
    pub(crate) fn side(&self, part: NetworkPart, goes_to_device: bool, now: Side) -> Side {
        let sides = self.sides(part);
        match (sides.has(Side::Host), sides.has(Side::Device)) {
            (true, false) => Side::Host,
            (false, _) => Side::Device,
            (true, true) => match part {
                NetworkPart::Ffn(_) | NetworkPart::Experts(_) if !goes_to_device => Side::Host,
                NetworkPart::Ffn(_) | NetworkPart::Experts(_) => Side::Device,
                _ => now,
            },
        }
    }

    /// Returns the layers of a store on a side, of the first `n_layers`; `part` is the kind of store.
    pub(crate) fn stored_on(
        &self,
        side: Side,
        part: fn(usize) -> NetworkPart,
        n_layers: usize,
    ) -> Vec<usize> {
        let is_here = |idx: &usize| self.sides(part(*idx)).has(side);
        (0..n_layers).filter(is_here).collect()
    }

    /// Returns the side on which rows of tokens are created: that of the first layer.
    fn input(&self) -> Side {
        self.layers.first().map_or(Side::Device, |layer| layer.mixer)
    }

    /// Returns the network as one side sees it, with the widths of its own layers only.
    pub(crate) fn network_of(&self, side: Side, network: &NetworkShape) -> NetworkShape {
        let mut own = network.clone();
        for (layer_idx, layer) in own.layers.iter_mut().enumerate() {
            if !self.sides(NetworkPart::Mixer(layer_idx)).has(side) {
                layer.attention = None;
                layer.state = None;
                layer.has_latent_rows = false;
                layer.kv = None;
            }
            if !self.sides(NetworkPart::Experts(layer_idx)).has(side) {
                layer.experts = None;
            }
        }
        own
    }

    /// Returns the layers of the KV store on a side; their order gives their indices.
    pub(crate) fn kv_layout_of(&self, side: Side, layout: &KvLayout) -> KvLayout {
        let here = self.stored_on(side, NetworkPart::Kv, layout.layers.len());
        KvLayout {
            layers: here.iter().map(|&kv_idx| layout.layers[kv_idx]).collect(),
            groups: here.iter().map(|&kv_idx| layout.groups[kv_idx]).collect(),
            ..layout.clone()
        }
    }

    /// Returns the layers of the store of states on a side; their order gives their indices.
    pub(crate) fn state_layout_of(&self, side: Side, layout: &StateLayout) -> StateLayout {
        let here = self.stored_on(side, NetworkPart::State, layout.layers.len());
        StateLayout {
            layers: here.iter().map(|&state_idx| layout.layers[state_idx]).collect(),
            n_states: layout.n_states,
        }
    }

    /// Returns the uses of a part's matrix on one side; `None` if it is not there. A token embedding that is also the head is
    /// on the device too.
    pub(crate) fn usage_on(&self, side: Side, part: NetworkPart, usage: MatrixUsage) -> Option<MatrixUsage> {
        let sides = self.sides(part);
        match (usage, side) {
            (MatrixUsage::Tied, Side::Host) if !sides.has(Side::Device) => Some(MatrixUsage::Embedding),
            (MatrixUsage::Tied, Side::Device) if !sides.has(Side::Device) => Some(MatrixUsage::Linear),
            _ => sides.has(side).then_some(usage),
        }
    }
}
