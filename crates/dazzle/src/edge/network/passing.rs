//! Calls that go around a cut link, as bytes: what a port's message is within, and then the message itself, as that port
//! speaks it. A node between decodes and encodes it again; long byte strings stay where they are.

use std::any::Any;

use host::byways::{Ask, BYWAY_PORT, Name, Passed, Sight, Told};
use host::{Address, Envelope, Moment, NodeId, Port};
use serde::{Deserialize, Serialize};

use super::wire::Tongue;

/// An [`Ask`] without what is asked.
#[derive(Serialize, Deserialize)]
enum AskHead {
    Here { node: u32, life: u64 },
    Reach { node: u32, own: u32, life: u64 },
    Pass(PassedHead),
    Take(PassedHead),
}

/// A [`Passed`] without what is asked.
#[derive(Serialize, Deserialize)]
struct PassedHead {
    from: u32,
    to: u32,
    port: u16,
    life: u64,
    at: u64,
    is_urgent: bool,
}

/// A [`Told`] without an answer.
#[derive(Serialize, Deserialize)]
enum ToldHead {
    Here { life: u64, at: u64 },
    Unreached,
    Answer { port: u16 },
    Refused,
    Nothing,
}

/// Whether a request is a call that is to be passed on.
pub(super) fn is_pass(ask: &(dyn Any + Send)) -> bool {
    matches!(ask.downcast_ref(), Some(Ask::Pass(_)))
}

pub(super) fn room(tongue: &Tongue, ask: &(dyn Any + Send)) -> u32 {
    match ask.downcast_ref() {
        Some(Ask::Pass(Passed { to, request, .. }) | Ask::Take(Passed { to, request, .. })) => {
            spoken(tongue, to.port).room(request.peek())
        }
        _ => 0,
    }
}

pub(super) fn write_ask(tongue: &Tongue, ask: &(dyn Any + Send), bytes: Vec<u8>) -> Vec<u8> {
    let ask = ask.downcast_ref().unwrap_or_else(|| panic!("port {BYWAY_PORT} is asked for ways"));
    match ask {
        Ask::Here(Name { node, life }) => head(&AskHead::Here { node: node.0, life: *life }, bytes),
        Ask::Reach(there, Name { node, life }) => {
            head(&AskHead::Reach { node: there.0, own: node.0, life: *life }, bytes)
        }
        Ask::Pass(passed) => write_passed(tongue, passed, AskHead::Pass, bytes),
        Ask::Take(passed) => write_passed(tongue, passed, AskHead::Take, bytes),
    }
}

fn write_passed(tongue: &Tongue, passed: &Passed, ask: fn(PassedHead) -> AskHead, bytes: Vec<u8>) -> Vec<u8> {
    let Passed { from, to, seen, request } = passed;
    let (life, at, is_urgent) = (seen.life, seen.at.0, request.is_urgent());
    let passed = PassedHead { from: from.0, to: to.node.0, port: to.port.0, life, at, is_urgent };
    spoken(tongue, to.port).write_request(request, head(&ask(passed), bytes))
}

pub(super) fn read_ask(tongue: &Tongue, bytes: &[u8]) -> Option<Envelope> {
    let (head, within) = postcard::take_from_bytes(bytes).ok()?;
    let ask = match head {
        AskHead::Here { .. } | AskHead::Reach { .. } if !within.is_empty() => return None,
        AskHead::Here { node, life } => Ask::Here(Name { node: NodeId(node), life }),
        AskHead::Reach { node, own, life } => Ask::Reach(NodeId(node), Name { node: NodeId(own), life }),
        AskHead::Pass(passed) => Ask::Pass(read_passed(tongue, passed, within)?),
        AskHead::Take(passed) => Ask::Take(read_passed(tongue, passed, within)?),
    };
    Some(Envelope::new(ask))
}

fn read_passed(tongue: &Tongue, head: PassedHead, within: &[u8]) -> Option<Passed> {
    let PassedHead { from, to, port, life, at, is_urgent } = head;
    let request = tongue.of_port(Port(port))?.read_request(within)?;
    let request = if is_urgent { request.urgent() } else { request };
    let to = Address { node: NodeId(to), port: Port(port) };
    Some(Passed { from: NodeId(from), to, seen: Sight { life, at: Moment(at) }, request })
}

pub(super) fn write_told(tongue: &Tongue, told: &(dyn Any + Send), bytes: Vec<u8>) -> Vec<u8> {
    let told = told.downcast_ref().unwrap_or_else(|| panic!("port {BYWAY_PORT} tells of ways"));
    match told {
        Told::Here(Sight { life, at }) => head(&ToldHead::Here { life: *life, at: at.0 }, bytes),
        Told::Unreached => head(&ToldHead::Unreached, bytes),
        Told::Answer(port, answer) => {
            spoken(tongue, *port).write_answer(answer, head(&ToldHead::Answer { port: port.0 }, bytes))
        }
        Told::Refused => head(&ToldHead::Refused, bytes),
        Told::Nothing => head(&ToldHead::Nothing, bytes),
    }
}

pub(super) fn read_told(tongue: &Tongue, bytes: &[u8]) -> Option<Envelope> {
    let (head, within) = postcard::take_from_bytes(bytes).ok()?;
    let told = match head {
        ToldHead::Answer { port } => Told::Answer(Port(port), tongue.of_port(Port(port))?.read_answer(within)?),
        _ if !within.is_empty() => return None,
        ToldHead::Here { life, at } => Told::Here(Sight { life, at: Moment(at) }),
        ToldHead::Unreached => Told::Unreached,
        ToldHead::Refused => Told::Refused,
        ToldHead::Nothing => Told::Nothing,
    };
    Some(Envelope::new(told))
}

fn head(head: &impl Serialize, bytes: Vec<u8>) -> Vec<u8> {
    postcard::to_extend(head, bytes).expect("a head is a few numbers")
}

fn spoken(tongue: &Tongue, port: Port) -> &'static Tongue {
    tongue.of_port(port).unwrap_or_else(|| panic!("nothing is spoken on port {}", port.0))
}

#[cfg(test)]
mod tests {
    use protocol::fragment::{FragmentId, Part};
    use protocol::id::{LogId, RunNumber, SlotId, StripeNumber, TargetId};
    use protocol::manager::MANAGER_PORT;
    use protocol::storage::{STORAGE_PORT, StorageRequest, ToTarget};
    use protocol::token::{CLIENT_PORT, ClientAnswer, ClientRequest, TokenVersion};

    use super::*;
    use crate::edge::network::frame::Frame;
    use crate::edge::network::hello::Lane;
    use crate::edge::network::wire::TONGUES;
    use crate::edge::network::wire::tests::received;

    fn tongue() -> &'static Tongue {
        TONGUES.last().expect("there are ports")
    }

    fn passed(port: u16, request: Envelope) -> Passed {
        let (to, seen) = (Address { node: NodeId(2), port: Port(port) }, Sight { life: 7, at: Moment(8) });
        Passed { from: NodeId(1), to, seen, request }
    }

    #[test]
    fn a_call_within_another_arrives_as_it_was() {
        let request = ClientRequest::GiveUpSlot { slot: SlotId(3), life: Default::default(), version: TokenVersion(4) };
        let urgent = Envelope::new(request.clone()).urgent();
        let encoded = tongue().encode_request(&Envelope::new(Ask::Take(passed(CLIENT_PORT, urgent)))).unwrap();
        let ask = tongue().decode_request(received(encoded)).unwrap().open().unwrap();
        let Ask::Take(Passed { from, to, seen, request: passed }) = ask else { panic!("it was a call") };
        assert_eq!((from, to.node, to.port), (NodeId(1), NodeId(2), Port(CLIENT_PORT)));
        assert_eq!(seen, Sight { life: 7, at: Moment(8) });
        assert!(passed.is_urgent());
        assert_eq!(format!("{:?}", passed.open::<ClientRequest>().unwrap()), format!("{request:?}"));

        let answer = Envelope::new(Told::Answer(Port(CLIENT_PORT), Envelope::new(ClientAnswer::Done)));
        let encoded = tongue().encode_answer(&answer).unwrap();
        let told = tongue().decode_answer(received(encoded)).unwrap().open().unwrap();
        let Told::Answer(Port(CLIENT_PORT), answer) = told else { panic!("it was an answer") };
        assert!(matches!(answer.open(), Ok(ClientAnswer::Done)));
    }

    #[test]
    fn what_is_large_and_passed_on_has_a_lane_of_its_own() {
        let id = FragmentId { log: LogId(1), stripe: StripeNumber(2), run: RunNumber(0), part: Part::Data(0) };
        let read = |length| {
            let request = StorageRequest::Read { id, offset: 0, length };
            passed(STORAGE_PORT, Envelope::new(ToTarget { target: TargetId(0), request }))
        };
        let lane = |ask| tongue().encode_request(&Envelope::new(ask)).unwrap().lane();
        assert_eq!(lane(Ask::Pass(read(1 << 20))), Lane::Around);
        assert_eq!(lane(Ask::Take(read(1 << 20))), Lane::Bulk);
        assert_eq!([lane(Ask::Pass(read(4096))), lane(Ask::Take(read(4096)))], [Lane::Small; 2]);
    }

    #[test]
    fn nothing_is_within_what_is_within_another() {
        let here = AskHead::Here { node: 1, life: 7 };
        let ask = Ask::Here(Name { node: NodeId(1), life: 7 });
        let mut frame = received(tongue().encode_request(&Envelope::new(ask)).unwrap());
        let passed = |port| PassedHead { from: 1, to: 2, port, life: 7, at: 8, is_urgent: false };
        let body = |port| head(&AskHead::Take(passed(port)), Vec::new());
        for port in [BYWAY_PORT, MANAGER_PORT, 0, 999] {
            frame.body = [body(port), head(&here, Vec::new())].concat().into();
            let again = Frame { header: frame.header, body: frame.body.clone(), payloads: Vec::new() };
            assert!(tongue().decode_request(again).is_none(), "port {port}");
        }
    }
}
