//! What holds on all machines of a cluster, and on this one where nothing is set for all.

use protocol::maps::Maps;
use protocol::registry::RegistryRequest;
use protocol::settings::{Setting, Settings};
use serde_json::{Value, json};

use crate::config::Config;
use crate::node::Parts;

/// Makes changes for all machines, if there are any, and tells what holds then.
pub(crate) async fn settings(parts: &Parts, changes: Vec<Setting>) -> Result<Value, String> {
    let cluster = &parts.roles.cluster;
    if changes.is_empty() {
        let maps = cluster.newest().await.map_err(|error| error.to_string())?;
        return Ok(in_json(&maps, &parts.config));
    }
    let set = cluster.decide(|seen| RegistryRequest::Set(changes.clone(), seen)).await;
    set.map_err(|error| format!("{error}. `dazzle settings` shows what holds"))?;
    Ok(in_json(&cluster.maps(), &parts.config))
}

fn in_json(maps: &Maps, config: &Config) -> Value {
    let (all, own) = (maps.settings, config.own_settings());
    let one = |value: fn(&Settings) -> Option<u64>| {
        let (set, here) = (value(&all), value(&own));
        json!({"value": set.or(here), "for_all": set.is_some(), "here": here})
    };
    json!({
        "rebuild": one(|settings| settings.rebuild),
        "rebuild_minutes": one(|settings| settings.rebuild_minutes.map(u64::from)),
        "scrub_days": one(|settings| settings.scrub_days.map(u64::from)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_for_all_is_told_from_what_holds_here() {
        let mut maps = Maps::empty(1, 1);
        maps.settings = Settings::default().with(Setting::RebuildMinutes(Some(30)));
        let told = in_json(&maps, &Config::new(1, None, Vec::new()));
        assert_eq!(told["rebuild_minutes"], json!({"value": 30, "for_all": true, "here": 10}));
        assert_eq!(told["scrub_days"], json!({"value": 7, "for_all": false, "here": 7}));
    }
}
