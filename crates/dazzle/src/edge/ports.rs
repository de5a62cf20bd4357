//! Who answers on this node.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use host::{Handler, Port};

/// The handlers of a node's parts.
#[derive(Default)]
pub struct Ports(RwLock<BTreeMap<Port, Arc<dyn Handler>>>);

impl Ports {
    /// Who answers on `port`.
    pub fn handler(&self, port: Port) -> Option<Arc<dyn Handler>> {
        self.0.read().expect("no panic while ports are held").get(&port).cloned()
    }

    /// From now on `handler` does. A port is registered once.
    pub fn register(&self, port: Port, handler: Arc<dyn Handler>) {
        let before = self.0.write().expect("no panic while ports are held").insert(port, handler);
        assert!(before.is_none(), "port {} was registered before", port.0);
    }
}
