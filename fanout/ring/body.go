package ring

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrBody is the error of a body that does not match the type of its item.
var ErrBody = errors.New("ring: invalid body")

// Format is the body of a [RingFormat] item.
type Format struct{ Major, Minor uint16 }

const formatLen = 4

// Append appends the body to b and returns the result.
func (f Format) Append(b []byte) []byte {
	return binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(b, f.Major), f.Minor)
}

// ParseFormat parses the body of a [RingFormat] item. The error is [ErrBody].
func ParseFormat(body []byte) (Format, error) {
	if len(body) != formatLen {
		return Format{}, fmt.Errorf("%w: RING_FORMAT of %d bytes, want %d", ErrBody, len(body), formatLen)
	}
	le := binary.LittleEndian
	return Format{le.Uint16(body), le.Uint16(body[2:])}, nil
}

// TitleLen is how many bytes the title of a run may have.
const TitleLen = 80

// StateChange is the body of a [BeginRun], [EndRun], [PauseRun] or [ResumeRun] item
// (StateChangeItemBody in DataFormat.h).
type StateChange struct {
	Run        uint32 // number of the run
	Offset     uint32 // time since the run began, in units of 1/Divisor s
	Time       uint32 // seconds since 1970, until 2106
	Divisor    uint32
	OriginalID uint32 // source id of its first writer; version 12 only
	Title      string // TitleLen bytes at most, none of them 0
}

func stateChangeLen(v Version) int {
	if v == V12 {
		return 5*4 + TitleLen + 1
	}
	return 4*4 + TitleLen + 1
}

// Append appends the body to b in version v and returns the result. It cuts a title that is
// too long.
func (s *StateChange) Append(b []byte, v Version) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, s.Run)
	b = le.AppendUint32(b, s.Offset)
	b = le.AppendUint32(b, s.Time)
	b = le.AppendUint32(b, s.Divisor)
	if v == V12 {
		b = le.AppendUint32(b, s.OriginalID)
	}
	var title [TitleLen + 1]byte
	copy(title[:TitleLen], s.Title)
	return append(b, title[:]...)
}

// ParseStateChange parses the body of such an item, in version v. The error is [ErrBody].
func ParseStateChange(body []byte, v Version) (StateChange, error) {
	if want := stateChangeLen(v); len(body) != want {
		return StateChange{}, fmt.Errorf("%w: state change of %d bytes, want %d", ErrBody, len(body), want)
	}
	le := binary.LittleEndian
	s := StateChange{Run: le.Uint32(body), Offset: le.Uint32(body[4:]), Time: le.Uint32(body[8:]), Divisor: le.Uint32(body[12:])}
	if v == V12 {
		s.OriginalID = le.Uint32(body[16:])
	}
	title := body[len(body)-TitleLen-1:]
	for i, c := range title {
		if c == 0 {
			s.Title = string(title[:i])
			return s, nil
		}
	}
	return StateChange{}, fmt.Errorf("%w: the title of a state change is not terminated", ErrBody)
}
