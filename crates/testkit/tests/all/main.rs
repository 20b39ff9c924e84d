//! The integration tests of the test kit: networks, adapters and files on the backends that every machine has.
//!
//! They are one program, so that the network is compiled and linked once for all of them. Invariant: no test changes
//! process-wide state; `step_allocations` counts in the allocator and is a separate program.

mod adapter_scene;
mod adapters;
mod adapters_on_the_simulator;
mod chosen_cases;
mod company_on_the_simulator;
mod comparisons;
mod conformance;
mod contradictions;
mod control_vectors;
mod cuda;
mod cuda_contract;
mod engine_on_the_simulator;
mod executor;
mod expert_choices;
mod folder_parts;
mod fp8_folder;
mod fused_programs;
mod gguf_keys;
mod hf_folder;
mod load_errors;
mod mutations;
mod near_ties;
mod nextn;
mod parity;
mod parity_sim;
mod peft_base_layer;
mod reference_facts;
mod reference_models;
mod shared_pages_on_the_simulator;
mod tables_in_files;
mod tensor_parts;
mod vision;
mod vision_qwen;
mod vision_scene;
mod wrong_adapters;
