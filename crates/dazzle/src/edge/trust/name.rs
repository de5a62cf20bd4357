//! The name in a certificate.

use std::fmt;

use host::NodeId;
use rustls::pki_types::ServerName;

/// A node of a cluster. As a DNS name, `node-N.C.dazzle`, because that is what TLS compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeName {
    /// Its number.
    pub node: NodeId,
    /// The cluster it belongs to.
    pub cluster: u128,
}

impl NodeName {
    /// The node that is called so, if any can be.
    pub fn parse(name: &str) -> Option<NodeName> {
        let (node, rest) = name.strip_prefix("node-")?.split_once('.')?;
        let cluster = rest.strip_suffix(".dazzle")?;
        let named = NodeName { node: NodeId(node.parse().ok()?), cluster: u128::from_str_radix(cluster, 16).ok()? };
        // One node, one spelling.
        (named.to_string() == name).then_some(named)
    }

    /// As TLS wants it.
    pub(in crate::edge) fn server_name(&self) -> ServerName<'static> {
        ServerName::try_from(self.to_string()).expect("letters, digits and hyphens make a DNS name")
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node-{}.{:032x}.dazzle", self.node.0, self.cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_spelling() {
        let name = NodeName { node: NodeId(3), cluster: 0xab };
        assert_eq!(name.to_string(), "node-3.000000000000000000000000000000ab.dazzle");
        assert_eq!(NodeName::parse(&name.to_string()), Some(name));
        for bad in ["node-03.000000000000000000000000000000ab.dazzle", "node-3.ab.dazzle", "node-+3.", "", "node-3"] {
            assert_eq!(NodeName::parse(bad), None, "{bad}");
        }
        assert_eq!(NodeName::parse(&name.to_string().to_uppercase()), None);
    }
}
