// Package tcp
package tcp
