//! The server over real sockets with a real model: what a client, an operator and an attacker meet.
//!
//! One binary, so that it links once. Every test starts its own server, on a port that the system chooses.

mod adapters;
mod after_refusals;
mod agents;
mod any_name;
mod babble;
mod bodies;
mod both_ways;
mod calls;
mod clients;
mod connections;
mod context_shift;
mod cut_calls;
mod decisions;
mod defences;
mod demo;
mod disconnects;
mod earlier_answers;
mod encoders;
mod forced;
mod generation;
mod histories;
mod http2;
mod images;
#[cfg(unix)]
mod kv_events;
mod llama_clients;
mod llama_cpp;
mod media;
mod model_folder;
mod model_names;
mod model_roles;
mod models;
mod ollama;
mod operations;
mod played;
mod refusals;
mod script;
mod server;
mod several;
mod shapes;
mod silence;
mod slots;
mod speculation;
mod stops;
mod stream_limits;
mod stream_progress;
#[cfg(feature = "otel")]
mod traces;
mod wire;
mod words;
