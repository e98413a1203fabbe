//! What the programs share: how they find a cluster, what they read and print, and how they end.

pub mod endpoints;
pub mod exit;
pub mod fabric;
pub mod launcher;
pub mod logging;
pub mod node_settings;
pub mod open_files;
pub mod packaging;
pub mod progress;
pub mod rack_map;
pub mod settings;
pub mod sizes;
pub mod streams;
pub mod variables;
