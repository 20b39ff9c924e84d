//! The conformance suite on backends made of two: both the host's, and the host's with the simulated device's.

use tokenmill_backend::{Executor, KvType, NetworkShape, Side};
use tokenmill_model::ModelOptions;
use tokenmill_placed::{LayerPlacement, Overlap, Placed, Placement};
use tokenmill_testkit::{
    TinyModel,
    conformance::{self, Company, Features, RANDOM_NETWORKS, Subject},
    engines,
};

/// Returns the placement with the last layer on the device.
fn last_layer(network: &NetworkShape) -> Placement {
    Placement::last_layers(network, 1)
}

/// Returns the placement with each layer placed in the same way.
fn alike(network: &NetworkShape, layer: LayerPlacement) -> Placement {
    Placement::new(network, vec![layer; network.layers.len()])
}

const MIXERS_ON_HOST: LayerPlacement = LayerPlacement {
    mixer: Side::Host,
    ffn: Side::Device,
    experts: Side::Device,
};

const FFNS_ON_HOST: LayerPlacement = LayerPlacement {
    mixer: Side::Device,
    ffn: Side::Host,
    experts: Side::Host,
};

const EXPERTS_ON_HOST: LayerPlacement = LayerPlacement {
    mixer: Side::Device,
    ffn: Side::Device,
    experts: Side::Host,
};

/// Returns a network on two backends of the host.
fn on_hosts(
    n_threads: usize,
    placement: fn(&NetworkShape) -> Placement,
    model: &TinyModel,
    options: &ModelOptions,
) -> Box<dyn Executor> {
    let placement = placement(&model.descriptor.shape());
    let placed = Placed::new(engines::cpu(n_threads), engines::cpu(n_threads), placement);
    engines::tiny(model, placed, options)
}

const HOSTS: [Subject; 5] = [
    Subject {
        load: |n, model, options| on_hosts(n, last_layer, model, options),
        n_threads: &[1, 2, 3, 5],
        features: Features::All,
        n_random_networks: RANDOM_NETWORKS,
        company: Company::Bits,
        stores: |_| true,
    },
    Subject {
        load: |n, model, options| on_hosts(n, |network| alike(network, MIXERS_ON_HOST), model, options),
        n_threads: &[1, 2, 3, 5],
        features: Features::All,
        n_random_networks: RANDOM_NETWORKS,
        company: Company::Bits,
        stores: |_| true,
    },
    Subject {
        load: |n, model, options| on_hosts(n, |network| alike(network, FFNS_ON_HOST), model, options),
        n_threads: &[1, 2, 3, 5],
        features: Features::All,
        n_random_networks: RANDOM_NETWORKS,
        company: Company::Bits,
        stores: |_| true,
    },
    Subject {
        load: |n, model, options| on_hosts(n, |network| alike(network, EXPERTS_ON_HOST), model, options),
        n_threads: &[1, 2, 3, 5],
        features: Features::All,
        n_random_networks: RANDOM_NETWORKS,
        company: Company::Bits,
        stores: |_| true,
    },
    Subject {
        load: |n, model, options| {
            let network = model.descriptor.shape();
            let mut placed = Placed::new(engines::cpu(n), engines::cpu(n), last_layer(&network));
            // Every step in two parts, if it can be divided.
            placed.set_overlap(Overlap::From(1));
            engines::tiny(model, placed, options)
        },
        n_threads: &[1, 2, 3, 5],
        features: Features::All,
        n_random_networks: RANDOM_NETWORKS,
        company: Company::Bits,
        stores: |_| true,
    },
];

/// On the simulated device every kernel is interpreted, so one placement has everything: one layer is on the host, and
/// for the others the experts, or half of the first.
const MIXED: Subject = Subject {
    load: |n, model, options| {
        let network = model.descriptor.shape();
        let mut layers = vec![EXPERTS_ON_HOST; network.layers.len()];
        layers[0] = MIXERS_ON_HOST;
        let placement = Placement::new(&network, layers);
        engines::tiny(
            model,
            Placed::new(engines::cpu(n), engines::gpu(), placement),
            options,
        )
    },
    n_threads: &[1, 2],
    // Each side is tried with every one, and so are splits between two backends of the host.
    features: Features::Slice,
    n_random_networks: 12,
    // Like the GPU alone.
    company: Company::Within(0.1),
    stores: |kv_types| kv_types == [KvType::F16; 2] || kv_types == [KvType::F32; 2],
};

macro_rules! suite {
    ($($claim:ident),* $(,)?) => {
        mod last_layer {
            use super::*;
            $(#[test] fn $claim() { conformance::$claim(&HOSTS[0]); })*
        }
        mod mixers_on_host {
            use super::*;
            $(#[test] fn $claim() { conformance::$claim(&HOSTS[1]); })*
        }
        mod ffns_on_host {
            use super::*;
            $(#[test] fn $claim() { conformance::$claim(&HOSTS[2]); })*
        }
        mod experts_on_host {
            use super::*;
            $(#[test] fn $claim() { conformance::$claim(&HOSTS[3]); })*
        }
        mod in_parts_of_steps {
            use super::*;
            $(#[test] fn $claim() { conformance::$claim(&HOSTS[4]); })*
        }
        mod with_the_simulated_gpu {
            use super::*;
            $(#[test] fn $claim() { conformance::$claim(&MIXED); })*
        }
    };
}

tokenmill_testkit::conformance_claims!(suite);
