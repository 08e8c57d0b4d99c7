package ring

import "strconv"

// Type is the type of a ring item.
type Type uint32

// The types of ring items (NSCLDAQ, DataFormat.h). Types from FirstUserItem on are free for
// use; [Parse] accepts any type.
const (
	BeginRun           Type = 1  // a run begins; see [StateChange]
	EndRun             Type = 2  // the run ends
	PauseRun           Type = 3  // the run pauses
	ResumeRun          Type = 4  // the run goes on
	AbnormalEndRun     Type = 5  // the run has ended without an EndRun
	PacketTypes        Type = 10 // texts: what the bodies of events contain
	MonitoredVariables Type = 11 // texts: values at this time
	RingFormat         Type = 12 // the version of the items that follow; see [Format]
	PeriodicScalers    Type = 20 // counters, read from time to time
	PhysicsEvent       Type = 30 // an event
	PhysicsEventCount  Type = 31 // how many events there were
	EVBFragment        Type = 40 // a ring item of one source, before events are built
	EVBUnknownPayload  Type = 41 // the same, of data that is not a ring item
	EVBGlomInfo        Type = 42 // how events are built

	FirstUserItem Type = 32768
)

var typeNames = map[Type]string{
	BeginRun: "BEGIN_RUN", EndRun: "END_RUN", PauseRun: "PAUSE_RUN", ResumeRun: "RESUME_RUN",
	AbnormalEndRun: "ABNORMAL_ENDRUN", PacketTypes: "PACKET_TYPES", MonitoredVariables: "MONITORED_VARIABLES",
	RingFormat: "RING_FORMAT", PeriodicScalers: "PERIODIC_SCALERS", PhysicsEvent: "PHYSICS_EVENT",
	PhysicsEventCount: "PHYSICS_EVENT_COUNT", EVBFragment: "EVB_FRAGMENT",
	EVBUnknownPayload: "EVB_UNKNOWN_PAYLOAD", EVBGlomInfo: "EVB_GLOM_INFO",
}

// String returns the name as NSCLDAQ spells it, or the number.
func (t Type) String() string {
	if name, ok := typeNames[t]; ok {
		return name
	}
	return "type " + strconv.FormatUint(uint64(t), 10)
}

// Version is the major version of NSCLDAQ that a ring item is written for.
type Version int

// The versions differ in how they mark an item without body header, and in the fields of some
// bodies.
const (
	V11 Version = 11
	V12 Version = 12
)

// String returns the number.
func (v Version) String() string { return strconv.Itoa(int(v)) }

// Valid reports whether v is V11 or V12.
func (v Version) Valid() bool { return v == V11 || v == V12 }
