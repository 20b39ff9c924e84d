//! The conformance suite on backends made of two: both the host's, and the host's with the simulated device's.

use tokenmill_backend::{KvType, NetworkShape, Side};
use tokenmill_cpu_exec::CpuBackend;
use tokenmill_cuda_exec::CudaBackend;
use tokenmill_placed::{LayerPlacement, Overlap, Placed, Placement};
use tokenmill_quant::CpuFeatures;
use tokenmill_sim_driver::{SimOptions, Simulator};
use tokenmill_testkit::conformance::{self, Company, RANDOM_NETWORKS, Subject};

fn cpu(n_threads: usize) -> CpuBackend {
    CpuBackend::new(Some(n_threads), CpuFeatures::detect()).expect("a few threads")
}

fn cuda() -> CudaBackend {
    let device = Simulator::new(&SimOptions::default()).device();
    CudaBackend::new(device).expect("the simulator loads the kernels")
}

/// The last layer on the device.
fn last_layer(network: &NetworkShape) -> Placement {
    Placement::last_layers(network, 1)
}

/// Each layer placed alike.
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

/// The last layer on the device, and every step in two parts that can be.
fn in_parts(mut placed: Placed<CpuBackend, CpuBackend>) -> Placed<CpuBackend, CpuBackend> {
    placed.set_overlap(Overlap::From(1));
    placed
}

const HOSTS: [Subject<Placed<CpuBackend, CpuBackend>>; 5] = [
    Subject {
        make: |n, network| Placed::new(cpu(n), cpu(n), last_layer(network)),
        n_threads: &[1, 2, 3, 5],
        n_random_networks: RANDOM_NETWORKS,
        company: Company::Bits,
        stores: |_| true,
    },
    Subject {
        make: |n, network| Placed::new(cpu(n), cpu(n), alike(network, MIXERS_ON_HOST)),
        n_threads: &[1, 2, 3, 5],
        n_random_networks: RANDOM_NETWORKS,
        company: Company::Bits,
        stores: |_| true,
    },
    Subject {
        make: |n, network| Placed::new(cpu(n), cpu(n), alike(network, FFNS_ON_HOST)),
        n_threads: &[1, 2, 3, 5],
        n_random_networks: RANDOM_NETWORKS,
        company: Company::Bits,
        stores: |_| true,
    },
    Subject {
        make: |n, network| Placed::new(cpu(n), cpu(n), alike(network, EXPERTS_ON_HOST)),
        n_threads: &[1, 2, 3, 5],
        n_random_networks: RANDOM_NETWORKS,
        company: Company::Bits,
        stores: |_| true,
    },
    Subject {
        make: |n, network| in_parts(Placed::new(cpu(n), cpu(n), last_layer(network))),
        n_threads: &[1, 2, 3, 5],
        n_random_networks: RANDOM_NETWORKS,
        company: Company::Bits,
        stores: |_| true,
    },
];

/// On the simulated device every kernel is interpreted, so one placement has everything: a layer on the host, and of the
/// others the experts, or half of the first.
const MIXED: Subject<Placed<CpuBackend, CudaBackend>> = Subject {
    make: |n, network| {
        let mut layers = vec![EXPERTS_ON_HOST; network.layers.len()];
        layers[0] = MIXERS_ON_HOST;
        Placed::new(cpu(n), cuda(), Placement::new(network, layers))
    },
    n_threads: &[1, 2],
    n_random_networks: 12,
    // As of the GPU alone.
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
